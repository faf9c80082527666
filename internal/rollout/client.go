package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

// Limits of what is read of an answer. An engine's answers are small: most are empty.
const (
	mostAnswer = 4 << 20 // that is needed
	mostError  = 16 << 10
	mostShown  = 300 // of an error, in a line for people
)

// ParseURL checks the address of an engine. What is after the host is a prefix of its endpoints.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, errors.New("is no URL, which begins with http:// or https://: give one such as http://127.0.0.1:8000")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return nil, fmt.Errorf("%q is no http or https URL with a host: give one such as http://127.0.0.1:8000", u.Redacted())
	case u.User != nil:
		return nil, errors.New("has a user or password in it, which everybody sees: give a token by --engine-token-file or EBB_ENGINE_TOKEN")
	case u.RawQuery != "" || u.Fragment != "" || u.ForceQuery:
		return nil, fmt.Errorf("%q has a query or fragment: give the address of the server alone", u.Redacted())
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	return u, nil
}

// client makes requests to one server. It uses no proxy, follows no redirect (the token is for this
// server alone) and keeps no connection.
type client struct {
	base  *url.URL
	token string
	http  *http.Client
}

func newClient(base *url.URL, token string) *client {
	return &client{base: base, token: token, http: &http.Client{
		Transport:     &http.Transport{Proxy: nil, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (c *client) name() string { return c.base.String() }

// call is one request.
type call struct {
	method, path string
	query        url.Values
	body         any // sent as JSON; nil: none
	answer       any // where the JSON answer goes; nil: it is not needed
}

func (k call) did() string {
	if len(k.query) == 0 {
		return k.method + " " + k.path
	}
	return k.method + " " + k.path + "?" + k.query.Encode()
}

// do makes a request. Only an answer with status 200 to 299 is success.
func (c *client) do(ctx context.Context, k call) error {
	fail := func(why error, text, remedy string) error {
		if c.token != "" {
			text = strings.ReplaceAll(text, c.token, "[token]")
		}
		return &Error{Engine: c.name(), Did: k.did(), Why: why, Text: text, Remedy: remedy}
	}
	request, err := c.request(ctx, k)
	if err != nil {
		return fail(ErrFailed, err.Error(), "")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return c.notReached(ctx, err, fail)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return c.refused(response, fail)
	}
	if k.answer == nil {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	switch {
	case err != nil:
		return c.notReached(ctx, err, fail)
	case len(text) > mostAnswer:
		return fail(ErrAnswer, fmt.Sprintf("its answer has more than %d bytes", mostAnswer), "is this the engine's address?")
	}
	if err := json.Unmarshal(text, k.answer); err != nil {
		return fail(ErrAnswer, fmt.Sprintf("its answer is not the JSON that is expected: %q", oneLine(string(text), 80)), "is this the engine's address?")
	}
	return nil
}

func (c *client) request(ctx context.Context, k call) (*http.Request, error) {
	target := *c.base
	target.Path += k.path
	target.RawQuery = k.query.Encode()
	var body io.Reader
	if k.body != nil {
		text, err := json.Marshal(k.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, k.method, target.String(), body)
	if err != nil {
		return nil, err
	}
	if k.body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	return request, nil
}

// notReached is the error of a request without an answer.
func (c *client) notReached(ctx context.Context, err error, fail func(error, string, string) error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail(ErrLate, "no answer by the deadline", "look at the engine's log")
	case ctx.Err() != nil:
		return fail(ErrInterrupted, "interrupted", "")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fail(ErrUnreachable, "connection refused", "start the engine, or correct its address")
	}
	why := ErrBroken
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		why = ErrUnreachable
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("the connection ended before its answer")
	}
	var wrapped *url.Error // it repeats the URL
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	return fail(why, oneLine(err.Error(), mostShown), "look at the engine's log, or correct its address")
}

// refused is the error of an answer that is not success.
func (c *client) refused(r *http.Response, fail func(error, string, string) error) error {
	said := ""
	if text, err := io.ReadAll(io.LimitReader(r.Body, mostError)); err == nil && len(text) > 0 {
		said = ": " + oneLine(message(text), mostShown)
	}
	text := fmt.Sprintf("status %d%s", r.StatusCode, said)
	switch code := r.StatusCode; {
	case code >= 300 && code < 400:
		return fail(ErrRefused, fmt.Sprintf("status %d, to %q, which is not followed", code, oneLine(r.Header.Get("Location"), mostShown)), "give the engine's own address")
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		return fail(ErrRefused, text, "give the engine's token by --engine-token-file or EBB_ENGINE_TOKEN")
	case code == http.StatusNotFound || code == http.StatusMethodNotAllowed:
		return fail(ErrNoEndpoint, text, "")
	case code >= 500:
		return fail(ErrFailed, text, "look at the engine's log")
	}
	return fail(ErrRefused, text, "")
}

// message is what an error's body says: {"error":{"message":…}}, {"detail":…}, {"message":…}, {"error":…}
// or the body itself.
func message(body []byte) string {
	var object map[string]any
	if json.Unmarshal(body, &object) != nil {
		return string(body)
	}
	if inner, ok := object["error"].(map[string]any); ok {
		object = inner
	}
	for _, key := range []string{"message", "detail", "error"} {
		if text, ok := object[key].(string); ok && text != "" {
			return text
		}
	}
	return string(body)
}
