package main

import (
	"slices"
	"testing"

	"github.com/ebb-offload/ebb/internal/node"
)

func TestStatusTellsOfStreamedState(t *testing.T) {
	rank := func(states ...node.Streamed) node.RankStatus {
		return node.RankStatus{Status: node.Status{States: states}}
	}
	r := statusResult{Ranks: []node.RankStatus{
		rank(node.Streamed{Name: "adam", Bytes: 1e9, Read: 2e9, Written: 3e9, InFlight: 1}),
		rank(),
		rank(node.Streamed{Name: "adam", Bytes: 1e9, Read: 2e9, Written: 3e9, Errors: 2}, node.Streamed{Name: "critic", Bytes: 5e9}),
	}}
	want := []string{
		`streamed state "adam" of 2 ranks: 2.00 GB (1.86 GiB) in files; 4.00 GB (3.73 GiB) read and 6.00 GB (5.59 GiB) written so far; 1 request in flight; 2 requests failed`,
		`streamed state "critic" of 1 rank: 5.00 GB (4.66 GiB) in files; 0 bytes read and 0 bytes written so far`,
	}
	if got := r.streamed(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
