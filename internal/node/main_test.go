package node

import (
	"os"
	"os/exec"
	"testing"
)

// sleeper is a process with an environment, which is there until the end of the test.
func sleeper(t testing.TB, environ ...string) (pid int) {
	t.Helper()
	cmd := exec.Command("cat") // until its standard input ends
	cmd.Env = append(os.Environ(), environ...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	// Once it answers its environment is there.
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid
}
