package launch

import (
	"errors"
	"strings"
	"testing"
)

func TestExpandableSegmentsAreFoundAnywhereInTheSettings(t *testing.T) {
	for settings, want := range map[string]bool{
		"":                                         false,
		"expandable_segments:True":                 true,
		"a:1,expandable_segments:True":             true,
		" expandable_segments : true ,b:2":         true,
		"EXPANDABLE_SEGMENTS:TRUE":                 true,
		"expandable_segments:False":                false,
		"max_split_size_mb:128":                    false,
		"roundup_power2_divisions:[256:1,512:2]":   false,
		"not_expandable_segments:True":             false,
		"expandable_segments":                      false,
		"garbage_collection_threshold:0.8,x:y,a:b": false,
	} {
		if got := expandableSegments(settings); got != want {
			t.Errorf("%q: %v, want %v", settings, got, want)
		}
	}
}

func TestExpandableSegmentsAreRefusedWithOffloadOnly(t *testing.T) {
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		getenv := func(n string) string {
			if n == name {
				return "a:1,expandable_segments:True"
			}
			return ""
		}
		o := NewOptions()
		if _, err := Settings(o, Libraries{}, Rank{}, getenv); err != nil {
			t.Errorf("without offload: %v", err)
		}
		o.Offload = true
		_, err := Settings(o, Libraries{}, Rank{}, getenv)
		var refused *Error
		if !errors.As(err, &refused) || refused.Status != StatusUsage || !strings.Contains(err.Error(), name) {
			t.Errorf("with offload: %v", err)
		}
	}
}
