package rankdir

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Identity is who a rank is.
type Identity struct {
	Job  string `json:"job"`
	Role string `json:"role"`
	Cell int    `json:"cell"`
	Rank int    `json:"rank"`
}

const (
	ebbDir       = ".ebb"
	leaseSuffix  = ".lease"
	markerSuffix = ".marker"

	maxJob    = 100 // bytes; with all else a file name stays under 255
	maxRole   = 60
	maxNumber = 999_999_999 // of a cell or rank
)

// IdentityError names the field of an identity that cannot be used.
type IdentityError struct {
	Field, Value, Rule string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Rule)
}

// Validate refuses identities that do not make safe and unambiguous names.
func (id Identity) Validate() error {
	if err := checkName("job", id.Job, maxJob); err != nil {
		return err
	}
	if err := checkName("role", id.Role, maxRole); err != nil {
		return err
	}
	// Job and role are joined by two underscores, and the cell follows after one: with this
	// rule the last pair is that joint, so that no two identities share a name.
	if strings.Contains(id.Role, "__") || strings.HasPrefix(id.Role, "_") || strings.HasSuffix(id.Role, "_") {
		return &IdentityError{"role", id.Role, "an underscore may stand only between other characters"}
	}
	for _, n := range []struct {
		field string
		value int
	}{{"cell", id.Cell}, {"rank", id.Rank}} {
		if n.value < 0 || n.value > maxNumber {
			return &IdentityError{n.field, fmt.Sprint(n.value), fmt.Sprintf("must be between 0 and %d", maxNumber)}
		}
	}
	return nil
}

func checkName(field, value string, longest int) error {
	const allowed = "only letters, digits and . _ - are allowed"
	switch {
	case value == "":
		return &IdentityError{field, value, "must not be empty"}
	case len(value) > longest:
		return &IdentityError{field, value, fmt.Sprintf("must not be longer than %d characters", longest)}
	case value[0] == '.' || value[0] == '-':
		return &IdentityError{field, value, "must not begin with a dot or dash"}
	}
	for _, c := range value {
		if !strings.ContainsRune("._-", c) && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return &IdentityError{field, value, allowed}
		}
	}
	return nil
}

// dirName is the name of the rank directory within the job's.
func (id Identity) dirName() string {
	return fmt.Sprintf("%s_cell%d_rank%d", id.Role, id.Cell, id.Rank)
}

// key begins the names of the lease and the marker.
func (id Identity) key() string { return id.Job + "__" + id.dirName() }

// Path is the rank directory under a base directory.
func (id Identity) Path(base string) string { return filepath.Join(base, id.Job, id.dirName()) }

// LeasePath is the lease file under a base directory.
func (id Identity) LeasePath(base string) string {
	return filepath.Join(base, ebbDir, id.key()+leaseSuffix)
}

// MarkerPath is the marker under a base directory.
func (id Identity) MarkerPath(base string) string {
	return filepath.Join(base, ebbDir, id.key()+markerSuffix)
}

func (id Identity) String() string {
	return fmt.Sprintf("job %s role %s cell %d rank %d", id.Job, id.Role, id.Cell, id.Rank)
}
