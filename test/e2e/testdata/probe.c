/* Preloaded beside libebb.so: at the end of the process, writes the number of its threads and
 * the ebb libraries that are mapped into it to the file that E2E_PROBE names. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int threads(void)
{
	int n = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *e; tasks && (e = readdir(tasks));)
		n += e->d_name[0] != '.';
	if (tasks)
		closedir(tasks);
	return n;
}

static int mapped(const char *name)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, name) != NULL;
	if (maps)
		fclose(maps);
	return found;
}

__attribute__((destructor)) static void report(void)
{
	const char *path = getenv("E2E_PROBE");
	FILE *out = path ? fopen(path, "we") : NULL;
	if (!out)
		return;
	fprintf(out, "threads=%d shim=%d engine=%d\n", threads(), mapped("/libebb.so"), mapped("/libebb-engine.so"));
	fclose(out);
}
