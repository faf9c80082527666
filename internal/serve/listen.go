package serve

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// place is where a server listens: a path of a socket, or an address of this machine.
type place struct {
	unix string // absolute path, or empty
	addr string // host and port
	loop bool   // the address is on the loopback interface, or the place is a socket
}

// parsePlace reads the text of --listen: HOST:PORT, unix:PATH or an absolute path.
func parsePlace(text string) (place, error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok || strings.HasPrefix(text, "/") {
		abs, err := filepath.Abs(path)
		if err != nil || path == "" {
			return place{}, fmt.Errorf("--listen %s: name the path of a socket, as in unix:/run/user/1000/ebb-serve.sock", text)
		}
		if len(abs) > 107 {
			return place{}, fmt.Errorf("--listen %s: the path of a socket has at most 107 bytes, this one has %d", text, len(abs))
		}
		return place{unix: abs, loop: true}, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return place{}, fmt.Errorf("--listen %s: want HOST:PORT, as in 127.0.0.1:7737, or unix:PATH", text)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return place{}, fmt.Errorf("--listen %s: %q is no port, want 0 to 65535", text, port)
	} else if host == "localhost" {
		// Not looked up: what a name stands for is for others to say.
		return place{addr: "127.0.0.1:" + strconv.FormatUint(n, 10), loop: true}, nil
	}
	at := netip.Addr{}
	if host != "" {
		if at, err = netip.ParseAddr(host); err != nil {
			return place{}, fmt.Errorf("--listen %s: %q is no IP address: 127.0.0.1 is this machine alone, 0.0.0.0 every interface", text, host)
		}
	}
	return place{addr: net.JoinHostPort(host, port), loop: at.Unmap().IsLoopback()}, nil
}

// open begins to listen. A socket is the user's alone from its first moment.
func (p place) open() (net.Listener, error) {
	if p.unix == "" {
		l, err := net.Listen("tcp", p.addr)
		if errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("%s is in use: another ebb serve? Choose another with --listen", p.addr)
		}
		if err != nil {
			return nil, fmt.Errorf("listening on %s: %w; name an address of this machine, and a port from 1024 on (--listen)", p.addr, err)
		}
		return l, nil
	}
	if err := removeStale(p.unix); err != nil {
		return nil, err
	}
	before := syscall.Umask(0o177)
	l, err := net.Listen("unix", p.unix)
	syscall.Umask(before)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w; name a path in a directory that is there and yours (--listen unix:PATH)", p.unix, err)
	}
	return l, nil
}

// removeStale removes the socket of a server that has ended, and nothing else.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listening on %s: %w", path, err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("listening on %s: there is something that is no socket; choose another path", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("listening on %s: another server answers there; end it, or choose another path", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("listening on %s: the socket is there, and it is not known whose: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing the socket that an ended server left: %w", err)
	}
	return nil
}

// certificate is the pair of files for TLS, read anew when asked.
type certificate struct {
	certFile, keyFile string
	pair              atomic.Pointer[tls.Certificate]
}

func newCertificate(certFile, keyFile string) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// read takes the certificate that is in the files now. When that fails the one before stays.
func (c *certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", c.certFile, c.keyFile, err)
	}
	c.pair.Store(&pair)
	return nil
}

func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return c.pair.Load(), nil
		},
	}
}
