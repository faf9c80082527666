package serve

import (
	"context"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// RanksOf are the ranks that are found in the places and meant by a selection: a server knows no others.
func RanksOf(places node.Places, selection node.Selection) Node { return ranks{places, selection} }

// ranks is a Node through package node.
type ranks struct {
	places    node.Places
	selection node.Selection
}

func (r ranks) Discover(ctx context.Context) (found []node.Rank, silent []node.Silent, err error) {
	ranks, unanswered, err := node.Discover(ctx, r.places)
	for _, rank := range ranks {
		if r.selection.Means(rank.Who) {
			found = append(found, rank)
		}
	}
	for _, q := range unanswered {
		// One that nobody can name may be meant: it is shown rather than passed over.
		if r.selection.Means(q.Who) || q.Rank == "" && len(r.selection.PIDs) == 0 {
			silent = append(silent, q)
		}
	}
	return found, silent, err
}

func (r ranks) Sockets() []string { return node.Sockets(r.places) }

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
