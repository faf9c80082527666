package adopt

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever a manifest holds, the files that it names are hook libraries of its own folder.
func FuzzManifest(f *testing.F) {
	good, err := (&manifest{Format: manifestFormat, Files: []manifestFile{{Name: "torch_memory_saver_hook_mode_preload.abi3.so", SHA256: "0"}}}).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("null"))
	f.Add([]byte(`{"format":1,"files":[{"name":"../../etc/passwd"}]}`))
	f.Add([]byte(`{"format":1,"files":[{"name":"torch_memory_saver_hook_mode_preload.abi3.so\n"}]}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, manifestName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := readManifest(dir)
		if err != nil {
			if m != nil {
				t.Errorf("%q: %+v beside the error %v", text, m, err)
			}
			return
		}
		if m == nil || m.Format != manifestFormat {
			t.Fatalf("%q is %+v", text, m)
		}
		for _, file := range m.Files {
			if path := filepath.Join(dir, file.Name); filepath.Dir(path) != dir || !hookPattern.MatchString(file.Name) {
				t.Errorf("%q names %q", text, file.Name)
			}
		}
	})
}
