package client

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// again is how long to wait before another attempt at a socket whose queue is full.
const again = 10 * time.Millisecond

// connect waits where the socket's queue of callers is full, as that of a stopped process may be.
func connect(ctx context.Context, path string) (*net.UnixConn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if err == nil {
			return conn.(*net.UnixConn), nil //nolint:forcetypeassert // a connection of the network "unix"
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// peer is who made the socket at the other end. pid is 0 where it is in another pid namespace.
func peer(socket *net.UnixConn) (uid, pid int, err error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var failed error
	if err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err == nil {
		err = failed
	}
	if err != nil {
		return 0, 0, err
	}
	return int(cred.Uid), int(cred.Pid), nil
}
