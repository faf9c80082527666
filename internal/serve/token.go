package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Lengths of a token, in bytes: too short to be safe, and more than a header should hold.
const (
	minToken = 16
	maxToken = 1024
)

// token is what a client must show. Only its hash is kept, so that a comparison takes the same time
// whatever the length of what was shown.
type token struct {
	path string
	hash atomic.Pointer[[sha256.Size]byte]
}

// newToken reads a token's file.
func newToken(path string) (*token, error) {
	t := &token{path: path}
	if err := t.read(); err != nil {
		return nil, err
	}
	return t, nil
}

// read takes the token that is in the file now. When that fails the one before stays.
func (t *token) read() error {
	text, err := readPrivate(t.path, maxToken+2)
	if err != nil {
		return err
	}
	secret := strings.TrimRight(string(text), "\r\n")
	switch {
	case len(secret) < minToken:
		return fmt.Errorf("token file %s: the token has %d characters, at least %d are needed: openssl rand -hex 32 makes one", t.path, len(secret), minToken)
	case len(secret) > maxToken:
		return fmt.Errorf("token file %s: the token has more than %d characters", t.path, maxToken)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("token file %s: the token must be one line of printable ASCII without spaces", t.path)
	}
	hash := sha256.Sum256([]byte(secret))
	t.hash.Store(&hash)
	return nil
}

// shown refuses a request that does not show the token.
func (t *token) shown(r *http.Request) *refusal {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	hash := sha256.Sum256([]byte(strings.TrimSpace(secret)))
	same := subtle.ConstantTimeCompare(hash[:], t.hash.Load()[:]) == 1
	if !strings.EqualFold(scheme, "Bearer") {
		return refuse(http.StatusUnauthorized, codeToken, "send the header Authorization: Bearer TOKEN", "this server demands a token")
	}
	if !same {
		return refuse(http.StatusUnauthorized, codeToken, "compare it with the file given to --token-file", "the token is wrong")
	}
	return nil
}

// readPrivate reads a small file that nobody but its owner may read. It may be reached through a
// symbolic link, as mounted secrets are: what counts is the file.
func readPrivate(path string, limit int64) ([]byte, error) {
	// O_NONBLOCK: a named pipe must not hold the start up.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("token file: %w; name the file with the token (openssl rand -hex 32 makes one)", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("token file %s is not a regular file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("token file %s has mode %04o, others may read or change it: chmod 600 %s", path, info.Mode().Perm(), path)
	case info.Size() > limit:
		return nil, fmt.Errorf("token file %s has %d bytes: it must hold one line, the token", path, info.Size())
	}
	text, err := io.ReadAll(io.LimitReader(file, limit))
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", path, err)
	}
	return text, nil
}
