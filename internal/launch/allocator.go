package launch

import "strings"

// allocatorVariables hold the settings of PyTorch's allocator: "key:value,key:value".
var allocatorVariables = []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}

// checkAllocator refuses expandable segments: PyTorch takes such memory from the driver itself,
// past the calls that ebb manages, so that a pause would free nothing of it.
func checkAllocator(getenv func(string) string) error {
	for _, name := range allocatorVariables {
		if expandableSegments(getenv(name)) {
			return Usagef("%s turns expandable_segments on: memory of expandable segments cannot be parked yet; take it out of %s", name, name)
		}
	}
	return nil
}

func expandableSegments(settings string) bool {
	for _, entry := range strings.Split(settings, ",") {
		key, value, _ := strings.Cut(entry, ":")
		if strings.EqualFold(strings.TrimSpace(key), "expandable_segments") && strings.EqualFold(strings.TrimSpace(value), "true") {
			return true
		}
	}
	return false
}
