package k8s

import (
	"fmt"
	"regexp"
	"strings"
)

// maxName keeps the names of pods, which have endings, below 63 characters, and that of ebb's job, which has the
// namespace in front, below the 100 that it may have.
const maxName = 36

var (
	dnsLabel    = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)    // RFC 1035, as of services
	dnsPart     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`) // RFC 1123
	qualified   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	environment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	image       = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:/@-]*$`)
)

// checkName checks the name of an object that other names are made of.
func checkName(flag, name string, longest int) error {
	switch {
	case name == "":
		return wrongf("which name? %s NAME", flag)
	case !dnsLabel.MatchString(name):
		return wrongf("%s %q: must be a DNS label: letters from a to z, digits and dashes, with a letter first and no dash last", flag, name)
	case len(name) > longest:
		return wrongf("%s %q: has %d characters, at most %d are taken, for names are made of it that Kubernetes limits; choose a shorter one", flag, name, len(name), longest)
	}
	return nil
}

// checkSubdomain checks the name of an object that is there already.
func checkSubdomain(flag, name string) error {
	for part := range strings.SplitSeq(name, ".") {
		if !dnsPart.MatchString(part) || len(name) > 253 {
			return wrongf("%s %q: is no name of Kubernetes: small letters, digits, dashes and dots, at most 253", flag, name)
		}
	}
	return nil
}

// Pair is a label, a variable, or whatever else has a name and a value.
type Pair struct{ Name, Value string }

// ParsePairs parses NAME=VALUE[,NAME=VALUE…] of labels.
func ParsePairs(s string) ([]Pair, error) {
	var pairs []Pair
	seen := map[string]bool{}
	for word := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(word, "=")
		if !ok || !isLabelName(name) || value != "" && (!qualified.MatchString(value) || len(value) > 63) {
			return nil, fmt.Errorf("must be a label as app=trainer, or several with commas")
		}
		if seen[name] {
			return nil, fmt.Errorf("has the label %s twice", name)
		}
		seen[name] = true
		pairs = append(pairs, Pair{name, value})
	}
	return pairs, nil
}

// isLabelName reports whether a text is the name of a label, as gpu or nvidia.com/gpu.
func isLabelName(s string) bool {
	prefix, name, ok := strings.Cut(s, "/")
	if !ok {
		prefix, name = "", s
	}
	return (!ok || checkSubdomain("", prefix) == nil) && qualified.MatchString(name) && len(name) <= 63
}

// ParseResource parses the name of an extended resource, as nvidia.com/gpu.
func ParseResource(s string) (string, error) {
	if !strings.Contains(s, "/") || !isLabelName(s) {
		return "", fmt.Errorf("must be the name of a resource, as nvidia.com/gpu")
	}
	return s, nil
}

// ParseVariable parses NAME=VALUE of an environment.
func ParseVariable(s string) (Pair, error) {
	name, value, ok := strings.Cut(s, "=")
	if !ok || !environment.MatchString(name) {
		return Pair{}, fmt.Errorf("must be NAME=VALUE")
	}
	return Pair{name, value}, nil
}

// object is pairs as an object.
func object(pairs []Pair) Object {
	o := Object{}
	for _, p := range pairs {
		o = append(o, Field{Name: p.Name, Value: p.Value})
	}
	return o
}

// verbatim is a text in a command that Kubernetes leaves as it is: in $(NAME) it would put a variable, and of $$ it
// would make one dollar sign.
func verbatim(s string) string {
	var out strings.Builder
	for i := range len(s) {
		if s[i] == '$' && i+1 < len(s) && (s[i+1] == '$' || s[i+1] == '(') {
			out.WriteByte('$')
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
