package e2e

import (
	"debug/elf"
	"fmt"
	"strings"
	"testing"
)

func TestNothingNeedsAGlibcNewerThan234(t *testing.T) {
	for _, name := range []string{"libebb.so", "libebb-engine.so", "../bin/ebb"} {
		f, err := elf.Open(lib(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		versioned := 0
		for _, s := range symbols {
			var minor int
			if _, err := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); err != nil {
				if strings.HasPrefix(s.Version, "GLIBC_") {
					t.Errorf("%s: %s has version %s", name, s.Name, s.Version)
				}
				continue
			}
			versioned++
			if minor > 34 {
				t.Errorf("%s needs %s of %s", name, s.Name, s.Version)
			}
		}
		if versioned == 0 {
			t.Errorf("%s: no versioned symbols found", name)
		}
	}
}

func TestNothingNeedsMoreThanTheCLibrary(t *testing.T) {
	allowed := map[string]bool{"libc.so.6": true, "libdl.so.2": true, "libpthread.so.0": true, "libresolv.so.2": true, "libm.so.6": true, "ld-linux-x86-64.so.2": true}
	for _, name := range []string{"libebb.so", "libebb-engine.so", "../bin/ebb"} {
		f, err := elf.Open(lib(name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		needed, err := f.ImportedLibraries()
		if err != nil {
			t.Fatal(err)
		}
		for _, library := range needed {
			if !allowed[library] {
				t.Errorf("%s needs %s", name, library)
			}
		}
	}
}
