/* fake_driver_user.c: a library that is linked with the driver, and looks a function up after itself. */
#include <dlfcn.h>
#include <stddef.h>

int cuDriverGetVersion(int *version);

int driver_user(void);
void *next_after_user(const char *name);
void *default_of_user(const char *name);

int driver_user(void)
{
	int version;

	return cuDriverGetVersion(&version);
}

/* Not by tail calls: what these find depends on this library being the caller. */
void *next_after_user(const char *name)
{
	void *volatile found = dlsym(RTLD_NEXT, name);

	return found;
}

void *default_of_user(const char *name)
{
	void *volatile found = dlsym(RTLD_DEFAULT, name);

	return found;
}
