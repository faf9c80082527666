package launch

// FileSystem is what a directory lies on.
type FileSystem struct {
	Mount    string // where it is mounted
	Type     string // as /proc/self/mountinfo names it
	InMemory bool
	Network  bool
}

// FileSystemOf finds out what a directory lies on.
func FileSystemOf(dir string) (FileSystem, error) {
	m, err := mountOf(dir)
	if err != nil {
		return FileSystem{}, err
	}
	return FileSystem{Mount: m.point, Type: m.fsType, InMemory: m.inMemory(), Network: m.network()}, nil
}
