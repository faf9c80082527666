/*
 * unmanaged.c: device memory that passes the hooks unmanaged, so that a pause can say what it does
 * not free.
 *
 * A table holds what is live: allocations and mappings by address, memory of cuMemCreate by handle.
 * Where there is no host memory for an entry, its memory is not counted.
 */
#include "shim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Memory of cuMemCreate. It lives while it has a handle or is mapped, and a driver may give the
 * number of a released handle to other memory. */
struct memory {
	uint64_t bytes;
	unsigned class;
	unsigned handles, mappings; /* references of the handle's holder; places where it is mapped */
};

enum kind { NOTHING, ALLOCATION, HANDLE, MAPPING };

struct entry {
	enum kind kind;
	unsigned class;        /* of an allocation, like the device */
	int device;            /* that was current; -1: not known */
	uint64_t key;          /* address, or handle */
	uint64_t bytes;        /* of an allocation or a mapping */
	struct memory *memory; /* behind a handle or a mapping; null behind a mapping of other memory */
};

/* Guards all below. Held over no call but malloc's and free's. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *table; /* open addressing, at most half full */
static size_t size, used;   /* size: a power of two, or 0 */
static struct {
	uint64_t bytes, count;
} held[CLASSES];

/* A child forked while another thread is here finds the lock free. */
static void take(void)
{
	pthread_mutex_lock(&lock);
}

static void give(void)
{
	pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
	pthread_atfork(take, give, give);
}

static void begin(void)
{
	static pthread_once_t watching = PTHREAD_ONCE_INIT;

	pthread_once(&watching, watch_forks);
	take();
}

/* ---- the table ------------------------------------------------------------------------------------- */

/* Where the search for an entry begins. */
static size_t home_of(enum kind kind, uint64_t key)
{
	/* Addresses differ in their middle bits. */
	return (size_t)(((key ^ (uint64_t)kind << 60) * 0x9E3779B97F4A7C15u) >> 20) & (size - 1);
}

/* The entry, or the place where it would be; null: the table is empty. */
static struct entry *place_of(enum kind kind, uint64_t key)
{
	if (size == 0)
		return NULL;
	size_t at = home_of(kind, key);
	while (table[at].kind != NOTHING && (table[at].kind != kind || table[at].key != key))
		at = (at + 1) & (size - 1);
	return &table[at];
}

static struct entry *find(enum kind kind, uint64_t key)
{
	struct entry *e = place_of(kind, key);

	return e != NULL && e->kind != NOTHING ? e : NULL;
}

static bool grow(void)
{
	struct entry *old = table;
	size_t old_size = size, new_size = size == 0 ? 256 : 2 * size;
	struct entry *new = calloc(new_size, sizeof(*new));

	if (new == NULL)
		return false;
	table = new;
	size = new_size;
	for (size_t i = 0; i < old_size; i++)
		if (old[i].kind != NOTHING)
			*place_of(old[i].kind, old[i].key) = old[i];
	free(old);
	return true;
}

/* A new entry, which must not be there yet; null: no memory. */
static struct entry *add(enum kind kind, uint64_t key)
{
	if (2 * (used + 1) > size && !grow())
		return NULL;
	struct entry *e = place_of(kind, key);
	e->kind = kind;
	e->key = key;
	used++;
	return e;
}

/* Entries behind it move up, so that no search ends before them. */
static void drop(struct entry *e)
{
	size_t hole = (size_t)(e - table);

	used--;
	for (size_t at = hole;;) {
		at = (at + 1) & (size - 1);
		if (table[at].kind == NOTHING)
			break;
		size_t home = home_of(table[at].kind, table[at].key);
		if (((at - home) & (size - 1)) < ((at - hole) & (size - 1)))
			continue; /* it begins behind the hole */
		table[hole] = table[at];
		hole = at;
	}
	memset(&table[hole], 0, sizeof(table[hole]));
}

/* ---- allocations ----------------------------------------------------------------------------------- */

static void drop_allocation(struct entry *e)
{
	held[e->class].bytes -= e->bytes;
	held[e->class].count--;
	drop(e);
}

void unmanaged_allocated(uint64_t address, uint64_t bytes, unsigned class)
{
	if (address == 0 || bytes == 0)
		return;
	int device = current_device();
	begin();
	struct entry *e = find(ALLOCATION, address);
	if (e != NULL)
		drop_allocation(e); /* it was freed by a way that is not hooked */
	e = add(ALLOCATION, address);
	if (e != NULL) {
		e->class = class;
		e->device = device;
		e->bytes = bytes;
		held[class].bytes += bytes;
		held[class].count++;
	}
	give();
}

struct unmanaged unmanaged_take(uint64_t address)
{
	struct unmanaged taken = {.bytes = 0};

	begin();
	struct entry *e = find(ALLOCATION, address);
	if (e != NULL) {
		taken = (struct unmanaged){.bytes = e->bytes, .class = e->class};
		drop_allocation(e);
	}
	give();
	return taken;
}

void unmanaged_were_reset(int device)
{
	begin();
	for (size_t i = 0; i < size;) {
		if (table[i].kind == ALLOCATION && table[i].device == device)
			drop_allocation(&table[i]); /* and perhaps another entry has moved here */
		else
			i++;
	}
	give();
}

/* ---- memory that is mapped by its owner --------------------------------------------------------- */

static void end_if_unused(struct memory *memory)
{
	if (memory->handles > 0 || memory->mappings > 0)
		return;
	held[memory->class].bytes -= memory->bytes;
	held[memory->class].count--;
	free(memory);
}

static void drop_handle(struct entry *e)
{
	struct memory *memory = e->memory;

	memory->handles = 0;
	drop(e);
	end_if_unused(memory);
}

static void drop_mapping(struct entry *e)
{
	struct memory *memory = e->memory;

	drop(e);
	if (memory == NULL)
		return;
	memory->mappings--;
	end_if_unused(memory);
}

void unmanaged_created(uint64_t handle, uint64_t bytes, unsigned class)
{
	begin();
	struct entry *e = find(HANDLE, handle);
	if (e != NULL)
		drop_handle(e); /* it was released by a way that is not hooked */
	struct memory *memory = calloc(1, sizeof(*memory));
	e = memory != NULL ? add(HANDLE, handle) : NULL;
	if (e != NULL) {
		*memory = (struct memory){.bytes = bytes, .class = class, .handles = 1};
		e->memory = memory;
		held[class].bytes += bytes;
		held[class].count++;
	} else {
		free(memory);
	}
	give();
}

void unmanaged_retained(uint64_t handle)
{
	begin();
	struct entry *e = find(HANDLE, handle);
	if (e != NULL)
		e->memory->handles++;
	give();
}

void unmanaged_released(uint64_t handle)
{
	begin();
	struct entry *e = find(HANDLE, handle);
	if (e != NULL && e->memory->handles > 1)
		e->memory->handles--;
	else if (e != NULL)
		drop_handle(e);
	give();
}

/* Mappings of managed memory are entered too, since an unmapped range may begin with some. */
void unmanaged_mapped(uint64_t address, uint64_t bytes, uint64_t offset, uint64_t handle)
{
	begin();
	struct entry *of = find(HANDLE, handle);
	struct memory *memory = of != NULL ? of->memory : NULL;
	struct entry *e = find(MAPPING, address);
	if (e != NULL)
		drop_mapping(e);
	e = add(MAPPING, address);
	if (e != NULL) {
		e->bytes = bytes;
		e->memory = memory;
	}
	if (e != NULL && memory != NULL) {
		memory->mappings++;
		if (memory->class == CLASS_IMPORTED && memory->bytes < offset + bytes) {
			/* Its size is its exporter's secret; this much it has. */
			held[CLASS_IMPORTED].bytes += offset + bytes - memory->bytes;
			memory->bytes = offset + bytes;
		}
	}
	give();
}

/* Where the next mapping behind a hole begins, only a look at all entries tells. */
static void drop_mappings_in(uint64_t address, uint64_t bytes)
{
	for (size_t i = 0; i < size;) {
		if (table[i].kind == MAPPING && table[i].key - address < bytes)
			drop_mapping(&table[i]); /* and perhaps another entry has moved here */
		else
			i++;
	}
}

/* A range that is unmapped holds whole mappings, mostly side by side; the driver minds no holes. */
void unmanaged_unmapped(uint64_t address, uint64_t bytes)
{
	uint64_t at = address;
	struct entry *e;

	begin();
	while (at - address < bytes && (e = find(MAPPING, at)) != NULL) {
		at += e->bytes;
		drop_mapping(e);
	}
	if (at - address < bytes)
		drop_mappings_in(at, bytes - (at - address));
	give();
}

/* ---- the sums ---------------------------------------------------------------------------------------- */

int64_t unmanaged_allocations(void)
{
	uint64_t count = 0;

	begin();
	for (unsigned class = 0; class < CLASSES; class++)
		if (class != CLASS_IMPORTED) /* that is not this process's to free */
			count += held[class].count;
	give();
	return (int64_t)count;
}

size_t unmanaged_classes(ebb_engine_unmanaged list[CLASSES])
{
	size_t n = 0;

	begin();
	for (unsigned class = 0; class < CLASSES; class++)
		if (held[class].count > 0)
			list[n++] = (ebb_engine_unmanaged){
				.name = class_name(class), .bytes = held[class].bytes, .count = held[class].count};
	give();
	return n;
}
