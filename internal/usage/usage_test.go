package usage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

func TestMain(m *testing.M) {
	if os.Getenv("EBB_TEST_TAKER") != "" {
		os.Exit(beTaker())
	}
	os.Exit(m.Run())
}

func self(t testing.TB) rankdir.Owner {
	t.Helper()
	o, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// newBase is a disk directory.
func newBase(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	if err := os.Mkdir(filepath.Join(base, ebbDir), 0o700); err != nil {
		t.Fatal(err)
	}
	return base
}

// newTestTable is the table of a rank of this process.
func newTestTable(t *testing.T, base, rank string) *Table {
	t.Helper()
	return NewTable(filesys.NewFaults(filesys.Kernel{}), base, rank, self(t))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// records are those in the file.
func records(t *testing.T, base string) (list []Record) {
	t.Helper()
	must(t, inspect(base, lockWait, func(_ *file, all []Record) error {
		for _, r := range all {
			if r.Rank != "" {
				list = append(list, r)
			}
		}
		return nil
	}))
	return list
}

func TestAQuotaCountsAllRanks(t *testing.T) {
	base := newBase(t)
	a, b := newTestTable(t, base, "j/actor_cell0_rank0"), newTestTable(t, base, "k/critic_cell0_rank1")
	must(t, a.Take(600, 1000))
	must(t, b.Take(400, 1000))
	err := b.Take(1, 1000)
	var quota *QuotaError
	if !errors.As(err, &quota) || quota.Held != 1000 || quota.Need != 1 || quota.Left() != 0 || quota.Dir != base {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{base, "is 1.00 kB, of which 1.00 kB are taken, and 1 byte more", "600 bytes by j/actor_cell0_rank0", "400 bytes by k/critic_cell0_rank1", fmt.Sprint(os.Getpid())} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
	must(t, a.Give(100))
	must(t, b.Take(100, 1000))
	if err := a.Take(1, 1000); err == nil {
		t.Error("more than the quota was given")
	}
	must(t, a.Take(1, 0)) // a job without a quota is counted too
	if err := b.Take(1, 1001); err == nil {
		t.Error("what a rank without a quota holds was not counted")
	}
}

func TestADirectoryOfTheUsersOwnIsCountedByItsFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not there yet")
	me, other := self(t), self(t)
	other.PID++
	table := Alone(filesys.Kernel{}, dir, me)
	must(t, table.Take(600, 1000)) // of which nothing is there yet
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(filepath.Join(dir, me.DataFile(1)), make([]byte, 600), 0o600)) // counted once
	must(t, os.WriteFile(filepath.Join(dir, other.DataFile(1)), make([]byte, 200), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "model.bak"), make([]byte, 5000), 0o600)) // not ebb's
	var quota *QuotaError
	if err := table.Take(201, 1000); !errors.As(err, &quota) || quota.Held != 800 || len(quota.Holders) != 2 {
		t.Fatalf("got %v", err)
	}
	must(t, table.Take(200, 1000))
	must(t, table.Give(100))
	must(t, table.Take(100, 1000))
	must(t, table.Wrote(5))
	if _, err := os.Stat(filepath.Join(dir, ebbDir)); !os.IsNotExist(err) {
		t.Errorf("something was made: %v", err)
	}
}

func TestADirectoryIsMadeWhereThereIsNoSupervisor(t *testing.T) {
	base := t.TempDir()
	must(t, newTestTable(t, base, "j/actor_cell0_rank0").Take(1, 1))
	info, err := os.Stat(filepath.Join(base, ebbDir, fileName))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(base, ebbDir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
}

// beTaker takes and gives back room in steps until it was refused or has what it wants, notes the
// most that all held in its own file, and ends without giving anything back.
func beTaker() int {
	base, rank := os.Getenv("EBB_TEST_TAKER"), os.Getenv("EBB_TEST_RANK")
	o, err := rankdir.Self()
	if err != nil {
		return 3
	}
	table, dir := NewTable(filesys.Kernel{}, base, rank, o), filepath.Join(base, rank)
	if rank == "" {
		table = Alone(filesys.Kernel{}, base, o)
	}
	if os.MkdirAll(dir, 0o700) != nil {
		return 3
	}
	for i := range uint64(200) {
		n := 1 + rand.Uint64N(4096)
		err := table.Take(n, takerQuota)
		var quota *QuotaError
		if errors.As(err, &quota) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 3
		}
		path := filepath.Join(dir, o.DataFile(i))
		if os.WriteFile(path, make([]byte, n), 0o600) != nil {
			return 3
		}
		table.Taken(takerQuota)
		if i%3 > 0 {
			if os.Remove(path) != nil || table.Give(n) != nil {
				return 3
			}
		}
		if i%7 == 0 {
			table.Rest()
		}
	}
	return 0
}

const takerQuota = 100_000

// Many processes on one quota, some of which are killed at any moment: what lies in the directory
// never is more than the quota, and who is refused is refused for what others hold.
func TestProcessesThatRaceNeverExceedAQuota(t *testing.T) {
	base := newBase(t)
	race(t, base, func(i int) string { return fmt.Sprintf("j/actor_cell0_rank%d", i) })
	// All have ended. What they left counts as long as it lies there, and no longer.
	held := uint64(filesIn(base))
	mine := newTestTable(t, base, "k/actor_cell0_rank0")
	var quota *QuotaError
	if err := mine.Take(takerQuota-held+1, takerQuota); !errors.As(err, &quota) || quota.Held != held {
		t.Fatalf("the dead left %d bytes: %v", held, err)
	}
	must(t, mine.Take(takerQuota-held, takerQuota))
	must(t, mine.Give(takerQuota-held))
	must(t, os.RemoveAll(filepath.Join(base, "j")))
	must(t, mine.Take(takerQuota, takerQuota))
}

// So it is in a directory that all of them were merely given, where nothing but their files is written.
func TestProcessesThatRaceInADirectoryOfTheUsersOwnNeverExceedAQuota(t *testing.T) {
	base := t.TempDir()
	race(t, base, func(int) string { return "" })
	list, err := os.ReadDir(base)
	must(t, err)
	for _, entry := range list {
		if !rankdir.IsDataFile(entry.Name()) {
			t.Errorf("left there: %s", entry.Name())
		}
	}
	held := uint64(filesIn(base))
	var quota *QuotaError
	if err := Alone(filesys.Kernel{}, base, self(t)).Take(takerQuota-held+1, takerQuota); !errors.As(err, &quota) || quota.Held != held {
		t.Errorf("the dead left %d bytes: %v", held, err)
	}
}

// race has processes take room in a directory, each as the rank of its number, and watches their files.
func race(t *testing.T, base string, rank func(i int) string) {
	t.Helper()
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for before := sizesIn(base); ; {
			// What was there in two looks lay there between them; one look takes a while, in which files come and go.
			now, n := sizesIn(base), int64(0)
			for path, size := range before {
				if _, still := now[path]; still {
					n += size
				}
			}
			if n > takerQuota {
				t.Errorf("%d bytes of files, the quota is %d", n, takerQuota)
				return
			}
			before = now
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var all sync.WaitGroup
	for i := range 12 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "EBB_TEST_TAKER="+base, "EBB_TEST_RANK="+rank(i))
		child.Stderr = os.Stderr
		must(t, child.Start())
		all.Go(func() {
			if i%4 == 0 {
				_ = child.Process.Kill()
			}
			if err := child.Wait(); err != nil && i%4 != 0 {
				t.Error(err)
			}
		})
	}
	all.Wait()
	close(stop)
	<-watched
}

// filesIn sums up the sizes of data files.
func filesIn(base string) (total int64) {
	for _, size := range sizesIn(base) {
		total += size
	}
	return total
}

// sizesIn are the sizes of data files, by path. Each of their names is used once.
func sizesIn(base string) map[string]int64 {
	sizes := map[string]int64{}
	_ = filepath.WalkDir(base, func(path string, entry os.DirEntry, err error) error {
		if err == nil && rankdir.IsDataFile(entry.Name()) {
			if info, err := entry.Info(); err == nil {
				sizes[path] = info.Size()
			}
		}
		return nil
	})
	return sizes
}

// What a rank has written is told after its process has ended, with that of the process before it,
// until its supervisor collects it.
func TestWhatWasWrittenOutlivesTheProcess(t *testing.T) {
	base := newBase(t)
	const rank = "j/actor_cell0_rank0"
	must(t, os.WriteFile(filepath.Join(base, ebbDir, "j__actor_cell0_rank0.lease"), nil, 0o600))
	now := self(t)
	for i := range 3 {
		gone := now
		gone.PID, gone.StartTime = 1<<22+1+i, 77 // no process has it
		table := NewTable(filesys.Kernel{}, base, rank, gone)
		must(t, table.Wrote(1000))
	}
	other := newTestTable(t, base, "j/actor_cell0_rank1")
	must(t, other.Wrote(5))
	must(t, other.Wrote(50))
	if n, err := Written(base, []string{rank}); err != nil || n != 3000 {
		t.Errorf("%d bytes (%v)", n, err)
	}
	if n, err := Written(base, []string{rank, "j/actor_cell0_rank1"}); err != nil || n != 3050 {
		t.Errorf("%d bytes (%v)", n, err)
	}
	must(t, Collect(base, []string{rank, "j/actor_cell0_rank1"})) // the second lives
	if list := records(t, base); len(list) != 1 || list[0].Written != 50 {
		t.Errorf("left: %+v", list)
	}
}

func TestTheFileGoesWithTheLastRecord(t *testing.T) {
	base := newBase(t)
	gone := self(t)
	gone.PID = 1<<22 + 1
	must(t, NewTable(filesys.Kernel{}, base, "j/actor_cell0_rank0", gone).Wrote(1))
	mine := newTestTable(t, base, "j/actor_cell0_rank1")
	must(t, mine.Take(1, 0)) // has the file open from here on
	place := filepath.Join(base, ebbDir, fileName)
	must(t, os.Remove(place)) // as Collect of others does
	must(t, mine.Take(1, 0))
	if list := records(t, base); len(list) != 1 || list[0].Held != 2 {
		t.Errorf("after the file was removed: %+v", list)
	}
	must(t, os.Remove(place))
	must(t, NewTable(filesys.Kernel{}, base, "j/actor_cell0_rank0", gone).Wrote(1))
	must(t, Collect(base, []string{"j/actor_cell0_rank0"}))
	if _, err := os.Lstat(place); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	must(t, Collect(base, nil))
	if n, err := Written(base, nil); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// A record whose rank has neither files nor lease is for others to use; so that the file does not
// grow with every rank that was killed.
func TestTheFileGoesWhenOnlyTheDeadAreInIt(t *testing.T) {
	base := newBase(t)
	const rank = "j/actor_cell0_rank0"
	dead := self(t)
	dead.StartTime--
	live := newTestTable(t, base, "k/actor_cell0_rank0")
	lease := filepath.Join(base, ebbDir, "j__actor_cell0_rank0.lease")
	must(t, os.WriteFile(lease, nil, 0o600))
	must(t, NewTable(filesys.Kernel{}, base, rank, dead).Take(5, 0))
	must(t, live.Take(5, 0))
	must(t, Tidy(base))
	if n := len(records(t, base)); n != 2 {
		t.Errorf("%d records, want that of the lease too", n)
	}
	must(t, os.Remove(lease))
	must(t, Tidy(base))
	if got := records(t, base); len(got) != 1 || got[0].Rank != "k/actor_cell0_rank0" {
		t.Errorf("%+v", got)
	}
	must(t, Collect(base, nil)) // a live record keeps the file
	must(t, inspect(base, lockWait, func(f *file, _ []Record) error { return f.write(live.place, Record{}) }))
	must(t, Tidy(base))
	if _, err := os.Stat(filepath.Join(base, ebbDir, fileName)); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	must(t, Tidy(base))
	must(t, Tidy(t.TempDir()))
}

func TestPlacesOfTheDeadAreUsedAgain(t *testing.T) {
	base := newBase(t)
	for i := range 40 {
		gone := self(t)
		gone.PID = 1<<22 + 1 + i
		must(t, NewTable(filesys.Kernel{}, base, fmt.Sprintf("j/actor_cell0_rank%d", i), gone).Take(100, 0))
	}
	if n := len(records(t, base)); n != 1 {
		t.Errorf("%d records", n)
	}
}

func TestEveryCallThatFailsLeavesTheCountTrue(t *testing.T) {
	faults := filesys.NewFaults(filesys.Kernel{})
	calls := 0
	run := func(base string) error {
		table := NewTable(faults, base, "j/actor_cell0_rank0", self(t))
		var quota *QuotaError
		err := table.Take(100, 150)
		if err == nil {
			if err = table.Take(100, 150); errors.As(err, &quota) {
				err = nil
			} else if err == nil {
				t.Fatal("more than the quota was given")
			}
		}
		table.Rest()
		for _, n := range faults.Calls() {
			calls += n
		}
		must(t, faults.Set(""))
		want := table.held
		if err == nil && want != 100 || err != nil && want != 0 && want != 100 {
			t.Fatalf("%d bytes held (%v)", want, err)
		}
		must(t, table.Give(0))
		if list := records(t, base); len(list) != 1 || list[0].Held != want {
			t.Fatalf("%+v, want %d bytes (%v)", list, want, err)
		}
		return err
	}
	must(t, run(t.TempDir()))
	all := calls
	if all < 10 {
		t.Fatalf("only %d calls", all)
	}
	for _, what := range []string{"EIO", "EINTR"} {
		for n := 1; n <= all; n++ {
			must(t, faults.Set(fmt.Sprintf("any:%d:%s", n, what)))
			err := run(t.TempDir())
			if what == "EINTR" && err != nil {
				t.Errorf("call %d interrupted: %v", n, err)
			}
			if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EINTR) {
				t.Errorf("call %d: %v", n, err)
			}
		}
	}
}

// A record with any bit changed is mended by the files that are there, whoever sees it first.
func TestADamagedRecordIsMended(t *testing.T) {
	now := self(t)
	for _, other := range []bool{false, true} { // the owner, or another process
		base := newBase(t)
		owner := now
		owner.StartTime += 7
		const rank = "j/actor_cell0_rank0"
		table := NewTable(filesys.Kernel{}, base, rank, owner)
		must(t, table.Take(1000, 5000))
		table.Rest()
		must(t, os.MkdirAll(filepath.Join(base, rank), 0o700))
		must(t, os.WriteFile(filepath.Join(base, rank, owner.DataFile(3)), make([]byte, 1000), 0o600))
		path := filepath.Join(base, ebbDir, fileName)
		text, err := os.ReadFile(path)
		must(t, err)
		text[rand.IntN(rankAt+len(rank))] ^= 1 << rand.IntN(8)
		must(t, os.WriteFile(path, text, 0o600))
		if other {
			table = newTestTable(t, base, "j/actor_cell0_rank1")
		}
		if err := table.Take(4001, 5000); err == nil {
			t.Errorf("other process %v: more than the quota was given", other)
		}
		must(t, table.Take(4000, 5000))
		var held uint64
		for _, r := range records(t, base) {
			held += r.Held
		}
		if held != 5000 {
			t.Errorf("other process %v: %d bytes are counted: %+v", other, held, records(t, base))
		}
	}
}

func TestWhatIsNotOursIsRefused(t *testing.T) {
	for name, plant := range map[string]func(path string) error{
		"other content":  func(path string) error { return os.WriteFile(path, make([]byte, 100), 0o600) },
		"open to others": func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"a symlink":      func(path string) error { return os.Symlink("/etc/hostname", path) },
		"a directory":    func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe":         func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		base := newBase(t)
		must(t, plant(filepath.Join(base, ebbDir, fileName)))
		if err := newTestTable(t, base, "j/actor_cell0_rank0").Take(1, 10); err == nil || !strings.Contains(err.Error(), base) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRecords(f *testing.F) {
	r := Record{Rank: "j/actor_cell0_rank0", Owner: rankdir.Owner{PID: 7, StartTime: 8, PIDNamespace: 9, BootID: "0123456789"}, Held: 1, Written: 2}
	f.Add(r.encode())
	f.Add(make([]byte, 2*recordBytes))
	f.Fuzz(func(t *testing.T, p []byte) {
		list, err := decodeAll(p)
		if err != nil {
			return
		}
		for i := range list {
			if list[i].Rank == damaged {
				continue
			}
			again := decode(list[i].encode())
			list[i].Owner.UID, again.Owner.UID = 0, 0
			if again != list[i] {
				t.Fatalf("%+v came back as %+v", list[i], again)
			}
		}
	})
}

// A process that is stopped while it has the lock keeps others waiting once, not at every change.
func TestWhereTheLockWasNotToBeHadNobodyWaitsAgainUntilItIs(t *testing.T) {
	base := newBase(t)
	faults := filesys.NewFaults(filesys.Kernel{})
	table := NewTable(faults, base, "job/rank", self(t))
	table.waited = lockWait // it has
	must(t, faults.Set("lock:*:EAGAIN"))
	if err := table.Take(5, 10); !errors.Is(err, unix.EAGAIN) || faults.Calls()["lock"] != 1 {
		t.Fatalf("%v after %d attempts", err, faults.Calls()["lock"])
	}
	must(t, faults.Set("lock:1:EAGAIN")) // from here on it can be had
	if err := table.Take(5, 10); !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	must(t, table.Take(5, 10))
	must(t, faults.Set("lock:1:EAGAIN"))
	must(t, table.Take(5, 10)) // it waits again
}

// Without a quota nobody waits for a lock to take room; what it took is told as soon as the lock can be had.
func TestRoomWithoutAQuotaIsTakenWithoutWaiting(t *testing.T) {
	base := newBase(t)
	faults := filesys.NewFaults(filesys.Kernel{})
	table := NewTable(faults, base, "job/rank", self(t))
	must(t, faults.Set("lock:*:EAGAIN"))
	for range 3 {
		must(t, table.Take(5, 0))
	}
	if n := faults.Calls()["lock"]; n != 3 {
		t.Errorf("%d attempts to lock", n)
	}
	if err := table.Wrote(7); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("what cannot be told: %v", err)
	}
	must(t, faults.Set(""))
	must(t, table.Wrote(7))
	if list := records(t, base); len(list) != 1 || list[0].Held != 15 || list[0].Written != 7 {
		t.Errorf("%+v", list)
	}
}
