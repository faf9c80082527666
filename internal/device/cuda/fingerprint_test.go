package cuda

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
)

const (
	row  = 4096
	tile = fingerprint.TileBytes
	mib  = 1 << 20
)

// lengths are those at which something begins or ends: chunk, row, batch of rows, tile, block.
var lengths = []int{
	1, 7, 15, 16, 17, 511, 512, 513, row - 1, row, row + 1, 2*row - 16, 8*row - 1, 8 * row, 8*row + 1, 9*row + 5,
	65535, 65537, tile - row, tile - 1, tile, tile + 1, tile + row, 3*tile - 17, 3*tile + 8*row + 15,
	mib + 12345, 4*mib - 1, 4 * mib, 4*mib + 1, 8 * mib,
}

// random is the source of a test's bytes; its seed is printed when the test fails.
func random(t *testing.T) *rand.ChaCha8 {
	t.Helper()
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %x", seed)
		}
	})
	return rand.NewChaCha8(seed)
}

// randomBytes is never zeros only: not a single byte either.
func randomBytes(r *rand.ChaCha8, n int) []byte {
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	p[0] = max(p[0], 1)
	return p
}

func newKey(t *testing.T) *fingerprint.Key {
	t.Helper()
	k, err := fingerprint.NewKey()
	must(t, err)
	return k
}

func newHasher(t *testing.T, d device.Driver, k *fingerprint.Key, tiles int) device.Hasher {
	t.Helper()
	h, err := d.NewHasher(k, tiles)
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	return h
}

func newStream(t *testing.T, d device.Driver) device.Stream {
	t.Helper()
	s, err := d.StreamCreate()
	must(t, err)
	t.Cleanup(func() { must(t, d.StreamDestroy(s)) })
	return s
}

// deviceMemory is n bytes of new memory of a device.
func deviceMemory(t *testing.T, d device.Driver, dev int, n int) mem.Addr {
	t.Helper()
	size := (uint64(n) + granularity - 1) / granularity * granularity
	addr, err := d.AddressReserve(size, granularity)
	must(t, err)
	h, err := d.MemCreate(size, mem.DeviceProps(dev, false))
	must(t, err)
	must(t, d.MemMap(addr, size, 0, h))
	must(t, d.MemSetAccess(addr, size, []mem.Access{mem.ReadWrite(dev)}))
	t.Cleanup(func() {
		must(t, d.MemUnmap(addr, size))
		must(t, d.MemRelease(h))
		must(t, d.AddressFree(addr, size))
	})
	return addr
}

// pinned is n bytes of pinned memory and their address for kernels.
func pinned(t *testing.T, d device.Driver, n int) ([]byte, mem.Addr) {
	t.Helper()
	p, err := d.HostAlloc(uint64(n))
	must(t, err)
	t.Cleanup(func() { must(t, d.HostFree(p)) })
	addr, err := d.HostDevicePointer(p)
	must(t, err)
	return unsafe.Slice((*byte)(p), n), addr
}

// upload brings p to device memory and waits for it.
func upload(t *testing.T, d device.Driver, s device.Stream, to mem.Addr, p []byte) {
	t.Helper()
	must(t, d.CopyToDevice(to, unsafe.Pointer(unsafe.SliceData(p)), uint64(len(p)), s))
	must(t, d.StreamSynchronize(s))
}

// hashOne is the fingerprint of one span, by the kernel.
func hashOne(t *testing.T, d device.Driver, h device.Hasher, s device.Stream, span device.Span) (fingerprint.Sum, bool) {
	t.Helper()
	n, err := h.Launch([]device.Span{span}, s)
	must(t, err)
	if n != 1 {
		t.Fatalf("%d blocks launched, want 1", n)
	}
	must(t, d.StreamSynchronize(s))
	return h.Sum(0)
}

// The kernel, on device memory and on pinned memory, and the CPU compute what package fingerprint defines,
// whatever lies behind the block.
func TestFingerprintsAreWhatIsDefined(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	r, k, s := random(t), newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 32)
	const room = 8*mib + granularity
	onHost, hostAddr := pinned(t, d, room)
	onDevice := deviceMemory(t, d, 0, room)
	for _, n := range lengths {
		p := randomBytes(r, n)
		want, zero := k.Of(p)
		if zero {
			t.Fatalf("%d random bytes are said to be zero", n)
		}
		check := func(where string, got fingerprint.Sum, zero bool) {
			t.Helper()
			if got != want || zero {
				t.Errorf("%d bytes, %s: %x, zero %v; want %x", n, where, got, zero, want)
			}
		}
		_, _ = r.Read(onHost) // dirt behind the end
		copy(onHost, p)
		upload(t, d, s, onDevice, onHost)
		got, isZero := hashOne(t, d, h, s, device.Span{Addr: onDevice, Bytes: uint64(n)})
		check("device memory", got, isZero)
		got, isZero = hashOne(t, d, h, s, device.Span{Addr: hostAddr, Bytes: uint64(n)})
		check("pinned memory", got, isZero)
		for _, shift := range []int{0, 1, 16} { // the CPU takes any address
			copy(onHost[shift:], p)
			got, isZero = d.HostFingerprint(k, onHost[shift:shift+n])
			check(fmt.Sprintf("CPU, %d bytes behind a page", shift), got, isZero)
		}
	}
}

// On the way to another place a block has the same fingerprint, and arrives there: not a byte more.
func TestBlocksAreHashedOnTheirWay(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	r, k, s := random(t), newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 32)
	const room = 4*mib + granularity
	staging, stagingAddr := pinned(t, d, room)
	host, _ := pinned(t, d, room)
	from, to := deviceMemory(t, d, 0, room), deviceMemory(t, d, 0, room)
	blank := bytes.Repeat([]byte{0xee}, room)
	for _, n := range lengths {
		if n > 4*mib+1 {
			continue
		}
		p := randomBytes(r, room)
		want, _ := k.Of(p[:n])
		arrived := bytes.Clone(blank)
		copy(arrived[row:], p[:n])
		upload(t, d, s, from, p)
		for name, there := range map[string]mem.Addr{"pinned memory": stagingAddr, "device memory": to} {
			copy(staging, blank)
			copy(host, blank)
			upload(t, d, s, to, host)
			if got, _ := hashOne(t, d, h, s, device.Span{Addr: from, To: there + row, Bytes: uint64(n)}); got != want {
				t.Errorf("%d bytes to %s: %x, want %x", n, name, got, want)
			}
			got := staging
			if there == to {
				must(t, d.CopyToHost(unsafe.Pointer(&host[0]), to, room, s))
				must(t, d.StreamSynchronize(s))
				got = host
			}
			if !bytes.Equal(got, arrived) {
				t.Errorf("%d bytes to %s: other bytes arrived", n, name)
			}
		}
	}
}

// A block is zero only if all of its bytes are, and what lies behind it does not count.
func TestZeroBlocksAreFoundExactly(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	r, k, s := rand.New(random(t)), newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 32)
	host, addr := pinned(t, d, 8*mib+row)
	for _, n := range lengths {
		clear(host)
		for i := n; i < n+row; i++ {
			host[i] = 0xff
		}
		span := device.Span{Addr: addr, Bytes: uint64(n)}
		zeros, zero := hashOne(t, d, h, s, span)
		if sum, cpu := d.HostFingerprint(k, host[:n]); !zero || !cpu || sum != zeros {
			t.Errorf("%d zeros: kernel says %v, CPU says %v; %x and %x", n, zero, cpu, zeros, sum)
		}
		for _, at := range []int{0, n - 1, r.IntN(n), r.IntN(n)} {
			host[at] = 1 << r.IntN(8)
			sum, zero := hashOne(t, d, h, s, span)
			if _, cpu := d.HostFingerprint(k, host[:n]); zero || cpu || sum == zeros {
				t.Errorf("%d bytes, byte %d is not zero: kernel says %v, CPU says %v", n, at, zero, cpu)
			}
			host[at] = 0
		}
	}
}

// Any flipped bit changes the fingerprint, and so does any other order of the same bytes.
func TestEveryChangeChangesTheFingerprint(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	source, k, s := random(t), newKey(t), newStream(t, d)
	r, h := rand.New(source), newHasher(t, d, k, 4)
	const n = 3*tile + 5*row + 7
	host, addr := pinned(t, d, n)
	_, _ = source.Read(host)
	hash := func() fingerprint.Sum {
		sum, _ := hashOne(t, d, h, s, device.Span{Addr: addr, Bytes: n})
		if cpu, _ := d.HostFingerprint(k, host); cpu != sum {
			t.Fatalf("kernel %x, CPU %x", sum, cpu)
		}
		return sum
	}
	before := hash()
	for bit := range 16 * 8 { // each bit of a chunk, somewhere
		at := r.IntN(n/16)*16 + bit/8
		host[at] ^= 1 << (bit % 8)
		if hash() == before {
			t.Errorf("bit %d of byte %d flipped: the same fingerprint", bit%8, at)
		}
		host[at] ^= 1 << (bit % 8)
	}
	for _, size := range []int{4, 8, 16, row, tile} {
		a := r.IntN(n/size-1) * size
		b := a + size
		swap := func() {
			former := bytes.Clone(host[a:b])
			copy(host[a:b], host[b:b+size])
			copy(host[b:b+size], former)
		}
		swap()
		if hash() == before {
			t.Errorf("%d bytes at %d and %d exchanged: the same fingerprint", size, a, b)
		}
		swap()
	}
	if hash() != before {
		t.Error("the same bytes have another fingerprint")
	}
	if other, _ := newKey(t).Of(host); other == before {
		t.Error("another key, the same fingerprint")
	}
}

// Blocks that differ only in how many zeros they end with differ.
func TestLengthCounts(t *testing.T) {
	d, k := open(t), newKey(t)
	zeros := make([]byte, 4*mib)
	seen := map[fingerprint.Sum]int{}
	for _, n := range lengths {
		if n > len(zeros) {
			continue
		}
		sum, _ := d.HostFingerprint(k, zeros[:n])
		if m, ok := seen[sum]; ok {
			t.Errorf("%d and %d zeros have the same fingerprint", m, n)
		}
		seen[sum] = n
	}
}

// One launch takes as many blocks as it has room for, in their order.
func TestManyBlocksInFewLaunches(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	source, k, s := random(t), newKey(t), newStream(t, d)
	r := rand.New(source)
	const blocks, most = 20_000, 2000
	host, addr := pinned(t, d, 16*blocks+most)
	_, _ = source.Read(host)
	spans := make([]device.Span, blocks)
	for i := range spans {
		spans[i] = device.Span{Addr: addr + mem.Addr(16*i), Bytes: uint64(1 + r.IntN(most))}
	}
	spans[3].Bytes = tile + 1 // takes the room of two
	h := newHasher(t, d, k, 4097)
	launches := 0
	for rest := spans; len(rest) > 0; launches++ {
		n, err := h.Launch(rest, s)
		must(t, err)
		if want := min(len(rest), 4097); n != want && n != want-1 {
			t.Fatalf("%d blocks launched, want %d", n, want)
		}
		must(t, d.StreamSynchronize(s))
		for i, span := range rest[:n] {
			p := host[span.Addr-addr:][:span.Bytes]
			if got, _ := h.Sum(i); i%50 < 5 {
				if want, _ := k.Of(p); got != want {
					t.Errorf("%d bytes at %v: %x, want %x", span.Bytes, span.Addr, got, want)
				}
			} else if want, _ := d.HostFingerprint(k, p); got != want {
				t.Errorf("%d bytes at %v: %x, want %x", span.Bytes, span.Addr, got, want)
			}
		}
		rest = rest[n:]
	}
	if launches != 5 {
		t.Errorf("%d launches, want 5", launches)
	}
}

// Workers hash beside one another, each on a stream and with a Hasher of its own, on several devices.
func TestHashersAreIndependent(t *testing.T) {
	d := open(t)
	k := newKey(t)
	var all sync.WaitGroup
	for worker := range 4 {
		source := random(t)
		all.Go(func() {
			onNewThread(func() {
				for dev := range 2 {
					ctx, err := d.PrimaryContext(dev)
					must(t, err)
					must(t, d.SetContext(ctx))
					s, err := d.StreamCreate()
					must(t, err)
					h, err := d.NewHasher(k, 8)
					must(t, err)
					p, err := d.HostAlloc(2 * mib)
					must(t, err)
					addr, err := d.HostDevicePointer(p)
					must(t, err)
					host := unsafe.Slice((*byte)(p), 2*mib)
					for range 4 {
						_, _ = source.Read(host)
						n, err := h.Launch([]device.Span{{Addr: addr, Bytes: mib}, {Addr: addr + mib, Bytes: mib - 3}}, s)
						if n != 2 || err != nil {
							t.Errorf("worker %d: %d blocks, %v", worker, n, err)
						}
						must(t, d.StreamSynchronize(s))
						for i, block := range [][]byte{host[:mib], host[mib : 2*mib-3]} {
							got, _ := h.Sum(i)
							if want, _ := d.HostFingerprint(k, block); got != want {
								t.Errorf("worker %d, device %d, block %d: %x, want %x", worker, dev, i, got, want)
							}
						}
					}
					must(t, h.Close())
					must(t, d.HostFree(p))
					must(t, d.StreamDestroy(s))
				}
			})
		})
	}
	all.Wait()
}

// A Hasher made in one context works in another.
func TestHasherFollowsTheContext(t *testing.T) {
	d := open(t)
	k := newKey(t)
	onDevice(t, d, 0)
	h := newHasher(t, d, k, 1)
	onDevice(t, d, 1)
	s := newStream(t, d)
	at := deviceMemory(t, d, 1, row)
	p := randomBytes(random(t), row)
	upload(t, d, s, at, p)
	want, _ := k.Of(p)
	if got, _ := hashOne(t, d, h, s, device.Span{Addr: at, Bytes: row}); got != want {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	k, s := newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 8)
	host, addr := pinned(t, d, mib)
	spans := []device.Span{{Addr: addr, Bytes: mib}, {Addr: addr, Bytes: 17}}
	if n := testing.AllocsPerRun(20, func() {
		_, err := h.Launch(spans, s)
		if err == nil {
			err = d.StreamSynchronize(s)
		}
		if err != nil {
			t.Error(err)
		}
		h.Sum(0)
		h.Sum(1)
		d.HostFingerprint(k, host[:row])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBlocksThatCannotBeHashedAreRefused(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	k, s := newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 2)
	_, addr := pinned(t, d, mib)
	var room *device.HasherRoomError
	if n, err := h.Launch([]device.Span{{Addr: addr, Bytes: 2*tile + 1}}, s); n != 0 || !errors.As(err, &room) || *room != (device.HasherRoomError{Bytes: 2*tile + 1, Tiles: 2}) {
		t.Errorf("three tiles where two have room: %d, %v", n, err)
	}
	for _, span := range []device.Span{{Addr: addr}, {Addr: addr + 8, Bytes: 16}, {Addr: addr, To: addr + 17, Bytes: 1}} {
		if n, err := h.Launch([]device.Span{{Addr: addr, Bytes: 1}, span}, s); n != 0 || err == nil {
			t.Errorf("%+v: %d, %v", span, n, err)
		}
	}
	if n, err := h.Launch(nil, s); n != 0 || err != nil {
		t.Errorf("no block: %d, %v", n, err)
	}
	if _, err := d.NewHasher(k, 0); err == nil {
		t.Error("a hasher with room for nothing was made")
	}
}

// Where the driver refuses the kernel the caller hears of it, and nothing is left behind; a later attempt may succeed.
func TestKernelThatIsRefused(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	k, s := newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 1)
	_, addr := pinned(t, d, row)
	for _, call := range []string{"cuModuleLoadData", "cuModuleGetFunction"} {
		must(t, SetSoftwareFault(d, call+":*:CUDA_ERROR_NO_BINARY_FOR_GPU"))
		err := d.LoadFingerprint()
		_, launchErr := h.Launch([]device.Span{{Addr: addr, Bytes: row}}, s)
		must(t, SetSoftwareFault(d, ""))
		for _, err := range []error{err, launchErr} {
			var e *device.Error
			if !errors.As(err, &e) || e.Call != call || !strings.Contains(err.Error(), "fingerprint kernel") {
				t.Errorf("%s fails: %v", call, err)
			}
		}
	}
	must(t, d.LoadFingerprint())
	must(t, SetSoftwareFault(d, "cuModuleLoadData:*:209"))
	defer func() { must(t, SetSoftwareFault(d, "")) }()
	must(t, d.LoadFingerprint()) // is loaded once
}

func TestHasherReportsFaults(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	k, s := newKey(t), newStream(t, d)
	h := newHasher(t, d, k, 1)
	_, addr := pinned(t, d, row)
	for call, do := range map[string]func() error{
		"cuMemHostAlloc":            func() error { _, err := d.NewHasher(k, 1); return err },
		"cuMemHostGetDevicePointer": func() error { _, err := d.NewHasher(k, 1); return err },
		"cuCtxGetCurrent":           d.LoadFingerprint,
		"cuLaunchKernel":            func() error { _, err := h.Launch([]device.Span{{Addr: addr, Bytes: 1}}, s); return err },
		"cuMemsetD8Async":           func() error { return d.MemsetZero(addr, 1, s) },
	} {
		must(t, d.LoadFingerprint())
		must(t, SetSoftwareFault(d, call+":1:719"))
		err := do()
		must(t, SetSoftwareFault(d, ""))
		var e *device.Error
		if !errors.As(err, &e) || e.Call != call || e.Code != 719 {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestMemsetZero(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	s := newStream(t, d)
	at := deviceMemory(t, d, 0, 3*row)
	host, _ := pinned(t, d, 3*row)
	for i := range host {
		host[i] = 0xff
	}
	want := bytes.Clone(host)
	clear(want[row : 2*row+5])
	upload(t, d, s, at, host)
	must(t, d.MemsetZero(at+row, row+5, s))
	must(t, d.CopyToHost(unsafe.Pointer(&host[0]), at, 3*row, s))
	must(t, d.StreamSynchronize(s))
	if !bytes.Equal(host, want) {
		t.Error("other bytes than those named are zero")
	}
}

// What a CPU's vectors are like makes no difference.
func TestFingerprintOfEveryWidthOfVectors(t *testing.T) {
	results := func(flags ...string) []string {
		program := filepath.Join(t.TempDir(), "widths")
		args := append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/fingerprint_widths.c"}, flags...)
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("cc %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		out, err := exec.Command(program).Output()
		must(t, err)
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	plain := results("-U__SSE2__") // without the processor's own functions
	if len(plain) < 100 {
		t.Fatalf("only %d tiles", len(plain))
	}
	for i, line := range results() {
		want := strings.Fields(plain[i])
		got := strings.Fields(line)
		for _, part := range got[1:] {
			if got[0] != want[0] || part != want[1] {
				t.Errorf("tile of %s bytes: %v, want %s", want[0], got[1:], want[1])
			}
		}
	}
}

// The kernel is compiled elsewhere (make ptx) and checked in: it must be that of the sources beside it.
func TestCompiledKernelIsThatOfItsSource(t *testing.T) {
	sum := sha256.New()
	for _, name := range []string{"fingerprint.cu", "fingerprint.h"} {
		text, err := os.ReadFile(name)
		must(t, err)
		sum.Write(text)
	}
	want := "sha256 " + hex.EncodeToString(sum.Sum(nil))
	if first, _, _ := strings.Cut(kernelPTX, "\n"); !strings.Contains(first, want) {
		t.Errorf("fingerprint.ptx was made of other sources (%q, want %s): run make ptx", first, want)
	}
	if !strings.Contains(kernelPTX, ".entry "+kernelName+"(") || !strings.Contains(kernelPTX, ".target sm_70") {
		t.Errorf("fingerprint.ptx has no kernel %s for sm_70", kernelName)
	}
}
