package rollout

import (
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
)

func decode(t *testing.T, r *http.Request, to any) {
	t.Helper()
	if err := json.NewDecoder(r.Body).Decode(to); err != nil {
		t.Error(err)
	}
}

func processIn(t *testing.T, file string) *os.Process {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	return process
}
