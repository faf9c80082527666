package store

// Extent is host memory for one backing, of one range of addresses.
type Extent interface {
	// Bytes returns n of its bytes from off on, and waits until they are there. The error says
	// why they cannot be, or that the extent was freed. It may be called from any goroutine.
	Bytes(off, n uint64) ([]byte, error)
	// Free gives the memory back, which nobody uses any more. After an error it can be called
	// again.
	Free() error
}

// Plain is an extent of memory that is there: Bytes does not wait.
func Plain(memory []byte, free func() error) Extent { return &plain{memory: memory, free: free} }

type plain struct {
	memory []byte
	free   func() error
}

func (p *plain) Bytes(off, n uint64) ([]byte, error) { return p.memory[off : off+n : off+n], nil }

func (p *plain) Free() error { return p.free() }
