package node

// Streamed is one streamed state of a rank: see docs/streaming.md.
type Streamed struct {
	Name     string `json:"name"`
	Bytes    uint64 `json:"bytes"`
	Read     uint64 `json:"read_bytes"`
	Written  uint64 `json:"written_bytes"`
	InFlight int    `json:"in_flight"`
	Errors   uint64 `json:"errors"`
}

// Add adds a state of another rank.
func (s *Streamed) Add(o Streamed) {
	s.Bytes += o.Bytes
	s.Read += o.Read
	s.Written += o.Written
	s.InFlight += o.InFlight
	s.Errors += o.Errors
}
