package main

import (
	"bufio"
	"strings"
	"testing"
)

// Events are read to the last one, whatever lies between them.
func FuzzEvents(f *testing.F) {
	f.Add("{\"event\":\"x\"}\n")
	f.Add("{\n\n[]\n")
	f.Add("null\n\x00\n")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, lastEvent) || len(text) > 4096 {
			return
		}
		seen := 0
		err := readEvents(bufio.NewScanner(strings.NewReader(text+"\n{\"event\":\"sentinel\"}\n{\"event\":\"closed\"}\n{\"event\":\"late\"}\n")), func(e event) {
			if e.Event == "sentinel" {
				seen++
			}
			if e.Event == "late" {
				t.Errorf("%q: read beyond the last event", text)
			}
		})
		if seen < 1 {
			t.Errorf("%q: the event after it was not read (%v)", text, err)
		}
	})
}
