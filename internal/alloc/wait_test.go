package alloc

import (
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
)

// A call says that it waits before it does, once, without a lock of the table.
func TestACallSaysThatItWaits(t *testing.T) {
	for name, call := range map[string]func(*Table, *Allocation){
		"Remove": func(tab *Table, _ *Allocation) {
			if _, s, err := tab.Remove(1000); err != nil || s != Paused {
				t.Errorf("removed in state %v: %v", s, err)
			}
		},
		"Await": func(tab *Table, a *Allocation) { tab.Await(a) },
	} {
		t.Run(name, func(t *testing.T) {
			tab := New()
			said := make(chan string, 8)
			tab.OnWait(func() {
				tab.Len() // the lock is free
				said <- name
			})
			a := add(tab, 1000, 100, "x")
			set, err := tab.BeginPause(nil)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan bool)
			go func() {
				call(tab, a)
				close(done)
			}()
			<-said
			tab.mu.Lock()
			tab.settled.Broadcast() // another allocation may settle first
			tab.mu.Unlock()
			tab.Settle(set, Paused)
			<-done
			if len(said) != 0 {
				t.Errorf("said %d times more that it waits", len(said))
			}
		})
	}
}

func TestAnOwnerSaysThatItWaitsForAnother(t *testing.T) {
	tab := New()
	said := make(chan bool, 8)
	tab.OnWait(func() { said <- true })
	unlock := tab.Owner()
	done := make(chan bool)
	go func() {
		tab.Owner()()
		close(done)
	}()
	<-said
	unlock()
	<-done
	if len(said) != 0 {
		t.Errorf("said %d times more that it waits", len(said))
	}
}

func TestACallThatNeedNotWaitSaysNothing(t *testing.T) {
	tab := New()
	tab.OnWait(func() { t.Error("it waits for nobody") })
	a := add(tab, 1000, 100, "x")
	o := object(tab, 50, "x")
	tab.Owner()()
	tab.Await(a, o)
	for _, base := range []mem.Addr{1000, 2000} {
		_, _, _ = tab.Remove(base)
	}
}
