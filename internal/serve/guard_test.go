package serve

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

const secret = "0123456789abcdef0123456789abcdef"

func writeFile(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// selfSigned makes a certificate for 127.0.0.1 and returns its files.
func selfSigned(t testing.TB) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key")
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 0o600)
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})), 0o600)
	return cert, key
}

func TestAnAddressOfTheNetworkDemandsTokenAndTLS(t *testing.T) {
	cert, key := selfSigned(t)
	token := tokenFile(t, secret+"\n")
	for name, test := range map[string]struct {
		o    Options
		says string // of the refusal; empty: it is taken
	}{
		"bare":             {Options{Listen: "0.0.0.0:0"}, "--token-file"},
		"every interface":  {Options{Listen: ":0"}, "--token-file"},
		"IPv6":             {Options{Listen: "[::]:0"}, "--token-file"},
		"token alone":      {Options{Listen: "0.0.0.0:0", Token: token}, "--tls-cert"},
		"TLS alone":        {Options{Listen: "0.0.0.0:0", TLSCert: cert, TLSKey: key}, "--token-file"},
		"half of TLS":      {Options{Listen: "127.0.0.1:0", TLSCert: cert}, "--tls-key"},
		"no certificate":   {Options{Listen: "127.0.0.1:0", TLSCert: token, TLSKey: key}, "certificate"},
		"name":             {Options{Listen: "node7:80"}, "no IP address"},
		"no port":          {Options{Listen: "127.0.0.1"}, "HOST:PORT"},
		"bad port":         {Options{Listen: "127.0.0.1:99999"}, "no port"},
		"socket with TLS":  {Options{Listen: "unix:/tmp/x", TLSCert: cert, TLSKey: key}, "needs no TLS"},
		"long path":        {Options{Listen: "unix:/" + strings.Repeat("x", 120)}, "107 bytes"},
		"no token":         {Options{Listen: "127.0.0.1:0", Token: token + "x"}, "token file"},
		"both":             {Options{Listen: "127.0.0.2:0", Token: token, TLSCert: cert, TLSKey: key}, ""},
		"loopback":         {Options{Listen: "localhost:0"}, ""},
		"another loopback": {Options{Listen: "127.1.2.3:0"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.o.Node, test.o.Log = newFake(0), slog.New(slog.NewTextHandler(io.Discard, nil))
			s, err := New(test.o)
			if err == nil {
				_ = s.listener.Close()
			}
			switch {
			case test.says == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)):
				t.Errorf("error %v, want one that says %s", err, test.says)
			}
		})
	}
}

func TestATokenFileMustBeFitForASecret(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"read by the group": {secret, 0o640, "chmod 600"},
		"read by all":       {secret, 0o604, "chmod 600"},
		"short":             {"hunter2\n", 0o600, "at least 16"},
		"empty":             {"", 0o600, "at least 16"},
		"long":              {strings.Repeat("x", 5000), 0o600, "one line"},
		"two lines":         {secret + "\n" + secret, 0o600, "printable"},
		"spaces":            {"0123456789 abcdef", 0o600, "printable"},
		"good":              {secret, 0o600, ""},
		"good with its end": {secret + "\r\n", 0o400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			writeFile(t, path, test.text, test.mode)
			_, err := newToken(path)
			if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
				t.Errorf("error %v, want %q", err, test.says)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells the secret: %v", err)
			}
		})
	}
	if _, err := newToken(dir); err == nil {
		t.Error("a directory was taken for a token")
	}
}

func TestTheTokenIsDemandedEverywhereButAtThePageAndHealth(t *testing.T) {
	s := serving(t, newFake(1), func(o *Options) { o.Token = tokenFile(t, secret+"\n") })
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + secret + "x", "Basic " + secret, secret, "Bearer " + secret[:31]} {
		for _, path := range []string{"/v1/node", "/v1/ranks", "/v1/events", "/metrics", "/nothing"} {
			r := s.get(path, "Authorization", authorization)
			refused(t, r, http.StatusUnauthorized, codeToken)
			if got := r.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
				t.Errorf("WWW-Authenticate: %q", got)
			}
		}
		refused(t, s.post("/v1/pause", "{}", "Authorization", authorization), http.StatusUnauthorized, codeToken)
	}
	if calls := s.node.(*fake).commanded(); len(calls) > 0 {
		t.Errorf("ranks were commanded: %v", calls)
	}
	for _, path := range []string{"/", "/healthz"} {
		if r := s.get(path); r.status != http.StatusOK {
			t.Errorf("%s: status %d", path, r.status)
		}
	}
	as[nodeReply](t, s.get("/v1/node", "Authorization", "Bearer "+secret), http.StatusOK)
	as[nodeReply](t, s.get("/v1/node", "Authorization", "bearer "+secret), http.StatusOK)
}

func TestATokenIsReadAnewAndABadOneLeavesTheOldOne(t *testing.T) {
	file := tokenFile(t, secret)
	s := serving(t, newFake(1), func(o *Options) { o.Token = file })
	other := strings.Repeat("z", 20)
	writeFile(t, file, other, 0o644)
	if err := s.Reload(); err == nil {
		t.Error("a token that all may read was taken")
	}
	as[nodeReply](t, s.get("/v1/node", "Authorization", "Bearer "+secret), http.StatusOK)
	writeFile(t, file, other, 0o600)
	if err := s.Reload(); err != nil {
		t.Error(err)
	}
	refused(t, s.get("/v1/node", "Authorization", "Bearer "+secret), http.StatusUnauthorized, codeToken)
	as[nodeReply](t, s.get("/v1/node", "Authorization", "Bearer "+other), http.StatusOK)
}

func TestTLSWithAToken(t *testing.T) {
	cert, key := selfSigned(t)
	s := serving(t, newFake(1), func(o *Options) {
		o.Token, o.TLSCert, o.TLSKey = tokenFile(t, secret), cert, key
	})
	text, err := os.ReadFile(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	s.client = &http.Client{Transport: transport}
	refused(t, s.get("/v1/node"), http.StatusUnauthorized, codeToken)
	as[nodeReply](t, s.get("/v1/node", "Authorization", "Bearer "+secret), http.StatusOK)
	if r := as[commandReport](t, s.post("/v1/pause", "{}", "Authorization", "Bearer "+secret), http.StatusOK); !r.OK {
		t.Errorf("%+v", r)
	}
}

// What a page of another site can make a browser send is refused, with everything that a browser says of it.
func TestOtherSitesAreRefused(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	port := s.base[strings.LastIndex(s.base, ":"):]
	for name, test := range map[string]struct {
		method, path string
		headers      []string
	}{
		"a name that resolves to loopback": {"GET", "/v1/node", []string{"Host", "evil.example"}},
		"with the port":                    {"POST", "/v1/pause", []string{"Host", "evil.example" + port}},
		"the page under that name":         {"GET", "/", []string{"Host", "evil.example"}},
		"a name that begins well":          {"GET", "/v1/node", []string{"Host", "localhost.evil.example"}},
		"a number of the network":          {"GET", "/v1/node", []string{"Host", "10.0.0.1"}},
		"cross-site action":                {"POST", "/v1/pause", []string{"Sec-Fetch-Site", "cross-site"}},
		"same-site action":                 {"POST", "/v1/resume", []string{"Sec-Fetch-Site", "same-site"}},
		"foreign origin":                   {"POST", "/v1/pause", []string{"Origin", "http://evil.example"}},
		"no origin to tell":                {"POST", "/v1/pause", []string{"Origin", "null"}},
		"origin of another port":           {"POST", "/v1/pause", []string{"Origin", "http://127.0.0.1:1"}},
		"foreign read":                     {"GET", "/v1/node", []string{"Sec-Fetch-Site", "cross-site"}},
		"foreign stream":                   {"GET", "/v1/events", []string{"Sec-Fetch-Site", "cross-site"}},
		"foreign scrape":                   {"GET", "/metrics", []string{"Origin", "http://evil.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, s.request(test.method, test.path, map[string]string{"POST": "{}"}[test.method], test.headers...), http.StatusForbidden, codeForeign)
		})
	}
	if calls := f.commanded(); len(calls) > 0 {
		t.Errorf("ranks were commanded: %v", calls)
	}
	for name, headers := range map[string][]string{
		"our own page":         {"Origin", s.base, "Sec-Fetch-Site", "same-origin"},
		"an older browser":     {"Origin", s.base},
		"typed in":             {"Sec-Fetch-Site", "none"},
		"no browser":           {},
		"by name":              {"Host", "localhost" + port},
		"through a forwarding": {"Host", "localhost:9999"},
		"IPv6":                 {"Host", "[::1]:80"},
	} {
		if r := s.post("/v1/pause", "{}", headers...); r.status != http.StatusOK {
			t.Errorf("%s: status %d: %s", name, r.status, r.body)
		}
	}
	if r := s.get("/", "Sec-Fetch-Site", "cross-site"); r.status != http.StatusOK {
		t.Errorf("a link to the page: status %d", r.status)
	}
}

func TestBodiesThatFormsCanSendAreRefused(t *testing.T) {
	s := serving(t, newFake(1), nil)
	for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", ";"} {
		refused(t, s.post("/v1/pause", "{}", "Content-Type", kind), http.StatusUnsupportedMediaType, codeContentType)
	}
	refused(t, s.post("/v1/pause", "{}", "Content-Encoding", "gzip"), http.StatusUnsupportedMediaType, codeContentType)
	if r := s.post("/v1/pause", "{}", "Content-Type", "application/json; charset=utf-8"); r.status != http.StatusOK {
		t.Errorf("status %d: %s", r.status, r.body)
	}
}

func TestRoutesAndMethods(t *testing.T) {
	s := serving(t, newFake(1), nil)
	for _, path := range []string{"/v1", "/v1/", "/v2/node", "/v1/node/", "/favicon.ico", "/../etc/passwd", "/v1//node"} {
		refused(t, s.get(path), http.StatusNotFound, codeNoRoute)
	}
	for path, allowed := range map[string]string{"/v1/node": "GET", "/metrics": "GET", "/": "GET", "/v1/events": "GET"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS"} {
			r := s.request(method, path, "")
			refused(t, r, http.StatusMethodNotAllowed, codeMethod)
			if got := r.header.Get("Allow"); got != allowed {
				t.Errorf("%s %s: Allow %q", method, path, got)
			}
		}
	}
	for _, path := range []string{"/v1/pause", "/v1/resume", "/v1/swap"} {
		if r := s.get(path); r.status != http.StatusMethodNotAllowed || r.header.Get("Allow") != "POST" {
			t.Errorf("GET %s: status %d, Allow %q", path, r.status, r.header.Get("Allow"))
		}
	}
	if r := s.request("HEAD", "/v1/events", ""); r.status != http.StatusMethodNotAllowed {
		t.Errorf("HEAD of the stream: status %d", r.status)
	}
	if r := s.request("HEAD", "/v1/node", ""); r.status != http.StatusOK || len(r.body) > 0 {
		t.Errorf("HEAD of the node: status %d, %d bytes", r.status, len(r.body))
	}
	refused(t, s.request("GET", "/v1/node", "{}"), http.StatusBadRequest, codeInvalid)
}

func TestASocketIsItsOwnersAlone(t *testing.T) {
	path := filepath.Join(testutil.SocketDir(t), "s")
	s := serving(t, newFake(1), func(o *Options) { o.Listen = "unix:" + path })
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %04o", info.Mode().Perm())
	}
	if !s.Guarded() {
		t.Error("a socket counts as open to all")
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	s.client, s.base = &http.Client{Transport: transport}, "http://ebb"
	as[nodeReply](t, s.get("/v1/node"), http.StatusOK)

	if _, err := New(Options{Node: newFake(0), Listen: path, Log: s.log}); err == nil || !strings.Contains(err.Error(), "another server answers") {
		t.Errorf("a second server on the socket: %v", err)
	}
	transport.CloseIdleConnections()
	s.stop()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestOnlyAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(testutil.SocketDir(t), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil { // as a killed server leaves it
		t.Fatal(err)
	}
	s, err := New(Options{Node: newFake(0), Listen: path})
	if err != nil {
		t.Fatal(err)
	}
	_ = s.listener.Close()
	writeFile(t, path, "precious", 0o600)
	if _, err := New(Options{Node: newFake(0), Listen: path}); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file in place of the socket: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "precious" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	s := serving(t, newFake(0), nil)
	address := strings.TrimPrefix(s.base, "http://")
	if _, err := New(Options{Node: newFake(0), Listen: address}); err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("error %v", err)
	}
}
