package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/testutil"
)

const greeting = `{"v":1,"ebb":"0.1.0","job":"j","role":"actor","cell":"0","rank":"3","pid":7,"started":"2026-01-02T03:04:05Z"}` + "\n"

// rank is a socket behind which a test says what a rank would say, and what it would not.
func rank(t testing.TB, serve func(*net.UnixConn)) (path string) {
	t.Helper()
	path = filepath.Join(testutil.SocketDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serve(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-over
	})
	return path
}

// requests calls answer with each request that comes, until the caller leaves.
func requests(conn *net.UnixConn, answer func(control.Request)) {
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var r control.Request
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			answer(r)
		}
	}
}

func dial(t testing.TB, path string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestDialHearsWhoTheRankIs(t *testing.T) {
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		for _, b := range []byte(greeting) { // however slowly it comes
			if _, err := conn.Write([]byte{b}); err != nil {
				return
			}
		}
		requests(conn, func(control.Request) {})
	}))
	want := control.Who{Job: "j", Role: "actor", Cell: "0", Rank: "3", PID: 7}
	if c.Hello().Who != want || c.Hello().EBB != "0.1.0" || c.Hello().Started.Year() != 2026 {
		t.Errorf("%+v", c.Hello())
	}
	if c.Peer() != os.Getpid() {
		t.Errorf("peer %d, want %d", c.Peer(), os.Getpid())
	}
}

func TestWhatIsNoRankIsRefused(t *testing.T) {
	for _, test := range []struct{ name, says, want string }{
		{"another version", `{"v":2,"ebb":"9.0.0","pid":"a text by now"}` + "\n",
			"the rank (ebb 9.0.0) speaks version 2 of the control protocol, this ebb version 1: use the ebb that the rank was started with"},
		{"a refusal", `{"v":1,"ok":false,"error":{"code":1,"message":"32 connections are open already: close one"}}` + "\n",
			"32 connections are open already: close one"},
		{"a refusal without a reason", `{"v":1,"ok":false,"error":{}}` + "\n", "not the control protocol: a refusal without a reason"},
		{"HTTP", "HTTP/1.1 400 Bad Request\r\n\r\n", "not the control protocol: the first line is no greeting"},
		{"no version", `{"ebb":"0.1.0"}` + "\n", "not the control protocol: the first line is no greeting"},
		{"a wrong type", `{"v":1,"pid":"seven"}` + "\n", "not the control protocol: the greeting: "},
		{"a line without end", strings.Repeat("x", control.MaxReply+1), "not the control protocol: a message of more than 4194304 bytes"},
		{"half a line", `{"v":1,`, "not the control protocol: the connection ended within a message"},
		{"nothing", "", "the rank ended the connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := rank(t, func(conn *net.UnixConn) { _, _ = conn.Write([]byte(test.says)) })
			c, err := Dial(t.Context(), path)
			if err == nil {
				c.Close()
				t.Fatal("it was taken for a rank")
			}
			if !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
}

func TestARankThatSaysNothingIsWaitedForUntilTheDeadline(t *testing.T) {
	leave := make(chan struct{})
	path := rank(t, func(*net.UnixConn) { <-leave })
	defer close(leave)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A stopped process takes no callers: when its queue is full the kernel turns them away, and the caller waits.
func TestAFullQueueIsWaitedForUntilTheDeadline(t *testing.T) {
	path := filepath.Join(testutil.SocketDir(t), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 { // one has room in the queue
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := Dial(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
}

func TestASocketWithoutAProcessIsRefused(t *testing.T) {
	path := filepath.Join(testutil.SocketDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Error(err)
	}
}

// Replies come in any order, between events, torn into pieces and several at a time.
func TestEachCallGetsItsReply(t *testing.T) {
	const calls = 20
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		var held []control.Request
		_, _ = conn.Write([]byte(greeting))
		requests(conn, func(r control.Request) {
			if held = append(held, r); len(held) < calls {
				return
			}
			var all strings.Builder
			for i := len(held) - 1; i >= 0; i-- {
				fmt.Fprintf(&all, `{"v":1,"event":"progress","bytes":%d}`+"\n", i)
				fmt.Fprintf(&all, `{"v":1,"id":"nobody's","ok":true}`+"\n"+`{"v":1,"news":[1,2]}`+"\n")
				fmt.Fprintf(&all, `{"v":1,"id":%q,"ok":true,"result":%q}`+"\n", held[i].ID, held[i].Address)
			}
			for text := all.String(); text != ""; {
				n := min(len(text), 7)
				_, _ = conn.Write([]byte(text[:n]))
				text = text[n:]
			}
		})
	}))
	answers := make(chan error, calls)
	for i := range calls {
		go func() {
			mine := fmt.Sprint(i)
			raw, err := c.Do(t.Context(), control.Request{Cmd: control.CmdRead, Address: mine})
			if err == nil && string(raw) != `"`+mine+`"` {
				err = fmt.Errorf("%s got %s", mine, raw)
			}
			answers <- err
		}()
	}
	for range calls {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
}

func TestARefusalIsTheRanksOwnError(t *testing.T) {
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		requests(conn, func(r control.Request) {
			fmt.Fprintf(conn, `{"v":1,"id":%q,"ok":false,"error":{"code":9,"message":"no room","need_bytes":5}}`+"\n", r.ID)
		})
	}))
	var refused *control.Error
	if _, err := c.Do(t.Context(), control.Request{Cmd: control.CmdResume, ID: "mine"}); !errors.As(err, &refused) || refused.Code != 9 || refused.Need != 5 {
		t.Error(err)
	}
}

func TestWhatIsNoReplyEndsTheConnection(t *testing.T) {
	for _, test := range []struct{ name, says, want string }{
		{"no JSON", "what?\n", "not the control protocol: a line that is no JSON object"},
		{"an array", "[]\n", "not the control protocol: a line that is no JSON object"},
		{"no reason", `{"v":1,"id":"a","ok":false}` + "\n", "not the control protocol: a refusal without a reason"},
		{"a reply of wrong types", `{"v":1,"id":"a","ok":true,"error":7}` + "\n", "not the control protocol: a reply: "},
		{"an event of wrong types", `{"v":1,"event":"end","bytes":-1}` + "\n", "not the control protocol: an event: "},
		{"huge", `{"v":1,"id":"a","ok":true,"result":"` + strings.Repeat("x", control.MaxReply) + `"}` + "\n", "not the control protocol: a message of more than"},
		{"half a reply", `{"v":1,"id":"a","ok":tr`, "not the control protocol: the connection ended within a message"},
		{"nothing", "", "the rank ended the connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dial(t, rank(t, func(conn *net.UnixConn) {
				_, _ = conn.Write([]byte(greeting))
				lines := bufio.NewScanner(conn)
				lines.Scan()
				_, _ = conn.Write([]byte(test.says))
			}))
			_, err := c.Do(t.Context(), control.Request{Cmd: control.CmdStatus, ID: "a"})
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
			<-c.Done()
			if _, err := c.Do(t.Context(), control.Request{Cmd: control.CmdStatus}); err == nil {
				t.Error("a connection that has ended took a request")
			}
			if _, err := c.Events(t.Context()); err == nil {
				t.Error("a connection that has ended took a subscription")
			}
		})
	}
}

func TestACallGivesUpAtItsDeadlineAndTheConnectionLives(t *testing.T) {
	var late atomic.Int64 // requests that were received and have no reply yet
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		requests(conn, func(r control.Request) {
			if r.Cmd == control.CmdPause {
				late.Add(1)
				return
			}
			for range late.Load() {
				fmt.Fprintln(conn, `{"v":1,"id":"slow","ok":true,"result":"slow"}`)
			}
			fmt.Fprintf(conn, `{"v":1,"id":%q,"ok":true,"result":%q}`+"\n", r.ID, r.ID)
		})
	}))
	// Its deadline may be over before it was sent.
	for limit := 20 * time.Millisecond; late.Load() == 0; limit *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		if _, err := c.Do(ctx, control.Request{Cmd: control.CmdPause, ID: "slow"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		if raw, err := c.Do(t.Context(), control.Request{Cmd: control.CmdStatus, ID: "next"}); err != nil || string(raw) != `"next"` {
			t.Errorf("%s, %v", raw, err)
		}
	}
}

func TestEventsComeInOrderUntilTheEnd(t *testing.T) {
	const events = 3 * eventRoom // more than wait in the channel
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		lines := bufio.NewScanner(conn)
		if !lines.Scan() {
			return
		}
		var r control.Request
		_ = json.Unmarshal(lines.Bytes(), &r)
		fmt.Fprintf(conn, `{"v":1,"id":%q,"ok":true,"result":null}`+"\n", r.ID)
		for i := range events {
			fmt.Fprintf(conn, `{"v":1,"seq":%d,"event":"progress","operation":"pause","pid":7}`+"\n", i)
		}
	}))
	got, err := c.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Events(t.Context()); err == nil {
		t.Error("a second subscription was taken")
	}
	var n uint64
	for e := range got {
		if e.Seq != n || e.PID != 7 || e.Operation != "pause" {
			t.Fatalf("event %d is %+v", n, e)
		}
		n++
	}
	if n != events {
		t.Errorf("%d events, want %d", n, events)
	}
}

// Who subscribes and does not read can still leave.
func TestCloseWithEventsUnread(t *testing.T) {
	flood := make(chan struct{})
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		requests(conn, func(r control.Request) {
			fmt.Fprintf(conn, `{"v":1,"id":%q,"ok":true}`+"\n", r.ID)
			for range 2 * eventRoom {
				fmt.Fprintln(conn, `{"v":1,"event":"progress"}`)
			}
			close(flood)
		})
	}))
	if _, err := c.Events(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-flood
	c.Close()
}

func TestARequestThatIsTooLongIsNotSent(t *testing.T) {
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		requests(conn, func(r control.Request) { fmt.Fprintf(conn, `{"v":1,"id":%q,"ok":true}`+"\n", r.ID) })
	}))
	for _, r := range []control.Request{
		{Cmd: control.CmdPause, Tags: []string{strings.Repeat("x", control.MaxRequest)}},
		{Cmd: control.CmdPause, ID: strings.Repeat("x", control.MaxID+1)},
	} {
		if _, err := c.Do(t.Context(), r); err == nil {
			t.Error("it was sent")
		}
	}
	if _, err := c.Do(t.Context(), control.Request{Cmd: control.CmdStatus}); err != nil {
		t.Error(err)
	}
}

// A rank that reads nothing does not hold a caller past its deadline.
func TestARankThatReadsNothing(t *testing.T) {
	leave := make(chan struct{})
	c := dial(t, rank(t, func(conn *net.UnixConn) {
		_, _ = conn.Write([]byte(greeting))
		<-leave
	}))
	defer close(leave)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	big := control.Request{Cmd: control.CmdPause, Tags: []string{strings.Repeat("x", control.MaxRequest/2)}}
	for range 200 { // more than a socket holds
		if _, err := c.Do(ctx, big); err == nil {
			t.Fatal("an answer from nobody")
		}
		if ctx.Err() == nil {
			t.Fatal("the call returned before its deadline")
		}
	}
}

// Whatever a rank sends, and in whatever pieces it comes, a message is taken or refused, a call gets one reply at
// most, and no line is longer than it may be.
func FuzzWhatARankSends(f *testing.F) {
	for _, seed := range []string{
		greeting + `{"v":1,"id":"a","ok":true,"result":{}}` + "\n",
		greeting + `{"v":1,"event":"begin"}` + "\n" + `{"v":1,"id":"a","ok":false,"error":{"code":1,"message":"m"}}` + "\n",
		greeting + `{"v":1,"id":"a","ok":true}{"v":1,"id":"b","ok":true}` + "\n\n\n",
		greeting + "null\n[1]\n\"text\"\n\x00\xff\n", `{"v":2}` + "\n", "\n", greeting + `{"ok":null,"event":null}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, says []byte) {
		answer := make(chan control.Reply, 1)
		c := &Conn{waiting: map[string]chan control.Reply{"a": answer}, events: make(chan control.Event, 4), closed: make(chan struct{})}
		close(c.closed) // nobody reads the events: those for which there is no room are dropped
		lines := newLines(iotest.HalfReader(bytes.NewReader(says)))
		for {
			line, err := lines.next()
			if err != nil {
				break
			}
			if len(line) >= control.MaxReply || bytes.ContainsRune(line, '\n') {
				t.Fatalf("a line of %d bytes", len(line))
			}
			if c.handOut(line) != nil {
				break
			}
		}
		select {
		case reply := <-answer:
			if raw, err := resultOf(reply); err == nil && len(raw) > 0 && !json.Valid(raw) {
				t.Errorf("a result that is no JSON: %q", raw)
			}
		default:
		}
	})
}
