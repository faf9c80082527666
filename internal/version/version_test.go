package version

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/testutil"
)

func TestTheVersionIsThatOfTheCHeader(t *testing.T) {
	header, err := os.ReadFile(filepath.Join(testutil.Root(t), "abi", "ebb_engine.h"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `#define EBB_VERSION "` + Version + `"`; !strings.Contains(string(header), want) {
		t.Fatalf("abi/ebb_engine.h lacks %s", want)
	}
}
