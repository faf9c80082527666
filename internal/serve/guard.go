package serve

import (
	"mime"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
)

// The guards of one request, in their order: who is asked, who asks from where, with which right. A
// browser that runs on the same machine reaches loopback too, for every page that it shows; Host,
// Sec-Fetch-Site and Origin tell those pages from ours.

// hostAllowed refuses names that are not this server's: a foreign name that resolves to a loopback
// address makes a browser take a foreign page for ours. Elsewhere the certificate and the token see
// to that, and no browser reaches a socket.
func (s *Server) hostAllowed(r *http.Request) *refusal {
	if !s.place.loop || s.place.unix != "" {
		return nil
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") {
		return nil
	}
	if at, err := netip.ParseAddr(host); err == nil && at.Unmap().IsLoopback() {
		return nil
	}
	return refuse(http.StatusForbidden, codeForeign, "ask for localhost or 127.0.0.1",
		"the Host header names %q, and this server answers on loopback only", short(r.Host))
}

// siteAllowed refuses what another site's page asks for: every action, and reading by script or image.
// A link to the page itself may stand anywhere.
func (s *Server) siteAllowed(r *http.Request, action, page bool) *refusal {
	site := r.Header.Get("Sec-Fetch-Site")
	foreign := site == "cross-site" || site == "same-site"
	if action {
		// The standard library's rule, which also compares Origin with Host for older browsers.
		foreign = foreign || s.foreign.Check(r) != nil
	}
	if origin := r.Header.Get("Origin"); origin != "" && site == "" {
		_, host, _ := strings.Cut(origin, "://")
		foreign = foreign || !strings.EqualFold(host, r.Host)
	}
	if !foreign || (page && !action) {
		return nil
	}
	return refuse(http.StatusForbidden, codeForeign, "", "another site's page may not use this server")
}

// jsonOnly refuses bodies that a form of another site could send.
func jsonOnly(r *http.Request) *refusal {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, codeContentType, "send the header Content-Type: application/json",
			"the body must be JSON")
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" {
		return refuse(http.StatusUnsupportedMediaType, codeContentType, "send the body as it is", "the body is encoded (%s)", short(encoding))
	}
	return nil
}

// headers are those of every reply: nothing is kept, guessed, framed or read by other sites.
func headers(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	if h.Get("Content-Security-Policy") == "" {
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	}
}

// short is a text of the client's, as it may stand in a message: a part of it, without what steers terminals.
func short(text string) string {
	const most = 64
	plain := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text))
	if len(plain) > most {
		return string(plain[:most]) + "…"
	}
	return string(plain)
}
