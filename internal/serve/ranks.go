package serve

import (
	"context"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// RanksOf are the ranks that are found in the places.
func RanksOf(places node.Places) Node { return ranks{places} }

// ranks is a Node through package node.
type ranks struct{ places node.Places }

func (r ranks) Discover(ctx context.Context) ([]node.Rank, []node.Silent, error) {
	return node.Discover(ctx, r.places)
}

func (ranks) Status(ctx context.Context, of []node.Rank, perRank time.Duration) []node.RankStatus {
	return node.StatusOf(ctx, of, perRank)
}

func (ranks) Pause(ctx context.Context, of []node.Rank, tags []string, timeout time.Duration, id string) node.Report {
	return node.Pause(ctx, of, tags, timeout, id)
}

func (ranks) Resume(ctx context.Context, of []node.Rank, tags []string, timeout time.Duration, id string) node.Report {
	return node.Resume(ctx, of, tags, timeout, id)
}

func (ranks) Watch(ctx context.Context, rank node.Rank, tell func(control.Event)) {
	node.Watch(ctx, []node.Rank{rank}, tell)
}
