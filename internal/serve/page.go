package serve

import (
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"net/http"
	"strings"
)

// The page is one document without anything from elsewhere. Its style and its script stand in it, and the
// policy that is sent with it lets nothing run but these two, by their hashes.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/page.css
	pageCSS string
	//go:embed page/page.js
	pageJS string
)

var (
	pageText   = strings.NewReplacer("/*STYLE*/", pageCSS, "/*SCRIPT*/", pageJS).Replace(pageHTML)
	pagePolicy = strings.Join([]string{
		"default-src 'none'",
		"style-src " + hashOf(pageCSS),
		"script-src " + hashOf(pageJS),
		"connect-src 'self'",
		"img-src data:",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
	}, "; ")
)

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// page answers GET /. It holds nothing of the node: its script asks for that, with the token where one is
// demanded.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) *refusal {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(pageText)) // a browser that has gone hears nothing
	return nil
}
