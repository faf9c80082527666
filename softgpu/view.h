/* What NVML tells of a device, handed from libcuda.so.1 to libnvidia-ml.so.1. Both are of one build. */
#ifndef SOFTGPU_VIEW_H
#define SOFTGPU_VIEW_H

#include "softgpu_cuda.h"

enum { SG_MAX_DEVICES = 16, SG_MAX_PROCESSES = 512 };

struct softgpu_view {
	int devices; /* of the node */
	char name[64];
	CUuuid uuid;
	unsigned bus; /* PCI: domain 0, this bus, device 0 */
	uint64_t total, used; /* bytes */
	int processes; /* living ones with a context or memory on the device */
	struct {
		unsigned pid;
		uint64_t used;
	} process[SG_MAX_PROCESSES];
};

/* Fills the view of a device: of the node, if a process lives there, else of the settings. Needs no cuInit and counts nowhere as a
 * process of the node. Every look at the node's file goes through here, and so through the library that may hold locks on it. */
__attribute__((visibility("default"))) CUresult softgpu_view(int device, struct softgpu_view *view);

#endif
