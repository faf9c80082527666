package launch

import (
	"fmt"
	"slices"
	"strings"
)

// What the flags decide in the library's own variables.
var decided = []struct{ variable, by string }{
	{"TMS_INIT_ENABLE", "--offload-train"},
	{"TMS_INIT_ENABLE_CPU_BACKUP", "--offload-train-target"},
	{"TMS_INIT_ENABLE_DISK_BACKUP", "--offload-train-target"},
	{"TMS_DISK_BACKUP_DIR", "--offload-train-disk-dir"},
	{"TMS_DISK_BACKUP_CHUNK_MB", "--offload-train-disk-chunk-mb"},
	{"EBB_HOST_MB", "--offload-train-host-mb"},
	{"EBB_DISK_QUOTA_BYTES", "--offload-train-disk-quota-gb"},
	{"EBB_HOST_ARENA", "always 1"},
}

// overridden is one line about variables that were set for the library and get other values from the
// flags; empty: there are none.
func overridden(settings []Setting, getenv func(string) string) string {
	if Nested(getenv) {
		return "" // they are the outer rank's
	}
	var list []string
	for _, d := range decided {
		was := getenv(d.variable)
		i := slices.IndexFunc(settings, func(s Setting) bool { return s.Name == d.variable })
		if was != "" && i >= 0 && truth(was) != truth(settings[i].Value) {
			list = append(list, fmt.Sprintf("%s=%s (%s)", d.variable, was, d.by))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "not used, the flags decide: " + strings.Join(list, ", ")
}

// truth makes the library's words for on and off one; off is as good as unset.
func truth(s string) string {
	switch s {
	case "true", "TRUE", "yes", "YES":
		return "1"
	case "0", "false", "FALSE", "no", "NO":
		return ""
	}
	return s
}
