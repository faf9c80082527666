/*
 * doors.c: finds the hooked function that a request is for, and the copy of it to hand out.
 *
 * Copies are taken up without a lock: each has its driver function set once, by whoever comes first.
 */
#include "doors.h"

#include <string.h>

struct door *const doors[] = {
#define POINT_TO(function) &function##_door,
	HOOKED(POINT_TO)
#undef POINT_TO
};
const size_t door_count = sizeof(doors) / sizeof(doors[0]);

struct door *door_of_symbol(const char *symbol)
{
	for (size_t i = 0; i < door_count; i++)
		if (strcmp(doors[i]->symbol, symbol) == 0)
			return doors[i];
	return NULL;
}

/* One name can mean several symbols: the newest that is not newer than the version that is asked
 * for. None of ours where the name means an older symbol still, as cuMemAlloc of 32 bits. */
struct door *door_of_name(const char *name, int version)
{
	struct door *newest = NULL;

	for (size_t i = 0; i < door_count; i++)
		if (doors[i]->name != NULL && strcmp(doors[i]->name, name) == 0 && doors[i]->since <= version &&
		    (newest == NULL || doors[i]->since > newest->since))
			newest = doors[i];
	return newest;
}

/* A driver whose own references go through the loader gives ours away as its own. */
static bool is_ours(const void *function)
{
	for (size_t i = 0; i < door_count; i++)
		for (size_t copy = 0; copy < DOOR_COPIES; copy++)
			if (doors[i]->ours[copy] == function)
				return true;
	return false;
}

void *door_open(struct door *door, void *found)
{
	if (is_ours(found))
		return found;
	for (size_t copy = 1; copy < DOOR_COPIES; copy++) {
		void *there = door->real[copy];

		if (there == NULL && atomic_compare_exchange_strong(&door->real[copy], &there, found))
			there = found;
		if (there == found)
			return door->ours[copy];
	}
	return door->ours[1]; /* more addresses than any driver has for one function: they do the same */
}

void *door_real(struct door *door, size_t copy)
{
	void *real = door->real[copy];

	if (real == NULL && copy == 0)
		door->real[0] = real = driver_function(door->symbol);
	return real;
}

/* ---- drivers that lack a function ------------------------------------------------------------- */

CUresult driver_missing(const char *symbol)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		log_line("%s was called, but no loaded driver (libcuda.so.1) has it", symbol);
	return CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
}

void driver_lacks(const struct door *door)
{
	static const char *const needed[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
					     "cuMemRelease"};
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!regions_used() && engine_state() != ENGINE_READY)
		return;
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		if (strcmp(door->symbol, needed[i]) == 0 && !atomic_flag_test_and_set(&said))
			log_line("the driver has no %s, without which no memory can be managed: update the driver",
				 needed[i]);
}
