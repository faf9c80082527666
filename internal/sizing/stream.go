package sizing

import "fmt"

// An optimizer of ebb.optim by its defaults: so many buckets are on the GPU at a time, each of so many elements at
// most. The update is made in fp32.
const (
	StreamedBuckets = 3
	BucketElements  = 200_000_000
	updated         = 4 // bytes of an element
)

// stream moves what an optimizer with streamed state keeps from the GPU to the disk. elements is how many parameters
// the rank updates.
func (k *Kinds) stream(s State, elements uint64) {
	k.Streamed, k.Master, k.Moments = k.Optimizer(), 0, 0
	own := uint64(updated) // of the bucket that is updated, beside its slot
	if s.Moment != FP32 {
		own = add(own, mul(s.Moments(), updated))
	}
	slots := mul(StreamedBuckets, add(s.Master.Bytes, mul(s.Moments(), s.Moment.Bytes)))
	k.Slots = mul(min(elements, BucketElements), add(slots, own))
}

// OnDisk is what a rank's streamed state takes.
func (k Kinds) OnDisk() uint64 { return k.Streamed }

// InStep is what a rank has on the GPU in a step.
func (k Kinds) InStep() uint64 { return add(k.Total(), k.Slots) }

// Streaming is what streamed state takes of a node.
type Streaming struct {
	Fits      bool   `json:"fits"`
	Why       string `json:"why,omitempty"` // it does not
	DiskBytes uint64 `json:"disk_bytes"`    // room that files take on the node, and what each step reads and writes
	Step      Range  `json:"step_s"`        // of its reads and writes, at raw rates: low is both at once, the rest one after the other
}

// Stream says what streaming takes on a disk with so much room, or room that is not known, at the node's rates. All
// ranks step at the same time, and read and write at once.
func (n Node) Stream(load Load, free uint64, known bool) Streaming {
	s := Streaming{Fits: true, DiskBytes: load.Sum(Kinds.OnDisk)}
	if known && s.DiskBytes > free {
		s.Fits, s.Why = false, fmt.Sprintf("disk: %s needed, %s free", Both(s.DiskBytes), Both(free))
	}
	if n.Write.Known() && n.Read.Known() {
		read, write := n.Read.seconds(s.DiskBytes), n.Write.seconds(s.DiskBytes)
		s.Step = Range{Low: max(read.Low, write.Low), Typical: read.Typical + write.Typical, High: read.High + write.High}
	}
	return s
}
