package serve

import (
	"fmt"
	"net/http"
	"strings"
)

// Codes of refusals. They are part of the interface: docs/serve.md says what each means.
const (
	codeInvalid     = "invalid_request" // 400: the body, a parameter or a header
	codeUnknown     = "unknown_name"    // 400: a role, rank, cell, job or tag that does not exist; Known lists those that do
	codeToken       = "unauthorized"    // 401
	codeForeign     = "forbidden"       // 403: another site, or a name that is not this server's
	codeNoRoute     = "not_found"       // 404
	codeMethod      = "method"          // 405
	codeNoRank      = "no_rank"         // 409: nobody runs here that was asked for
	codeHalfWay     = "half_way"        // 409: some ranks have done it, and others failed
	codeTooLarge    = "too_large"       // 413
	codeContentType = "content_type"    // 415
	codeKeyReused   = "key_reused"      // 422: the key stands for another request
	codeFailed      = "failed"          // 500: no rank has done it
	codeInternal    = "internal"        // 500
	codeBusy        = "busy"            // 503
	codeStopping    = "stopping"        // 503
	codeLate        = "late"            // 504: some rank has not answered by the deadline
	codeUnderWay    = "under_way"       // 504: the request of that key goes on
)

// refusal is a reply that is no success. It is the one shape of all of them.
type refusal struct {
	status int

	Code    string   `json:"code"`
	Message string   `json:"message"`
	Remedy  string   `json:"remedy,omitempty"`
	Known   []string `json:"known,omitempty"`  // what exists, where something unknown was named
	Report  any      `json:"report,omitempty"` // of a command: what was done all the same
}

func (r *refusal) Error() string { return r.Message }

// refuse makes a refusal; the remedy may be empty.
func refuse(status int, code, remedy, format string, args ...any) *refusal {
	return &refusal{status: status, Code: code, Remedy: remedy, Message: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *refusal {
	return refuse(http.StatusBadRequest, codeInvalid, "", format, args...)
}

// oneLine is an error's text for a message.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
