package serve

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
)

// maxKeys are remembered. The ranks remember the latest 64 commands each, so that a key that is
// forgotten here is still known to them.
const maxKeys = 1024

// keys are the requests by their Idempotency-Key.
type keys struct {
	mu    sync.Mutex
	byKey map[string]*asked
	order []string // oldest first
}

// asked is a request that has a key.
type asked struct {
	identity string
	set      chan struct{} // closed when one of the next two is set
	work     work
	refused  *refusal // before any rank was asked
}

// identity is what a request asks for, whatever its deadline.
func identity(verb string, body any) string {
	text, err := json.Marshal(body)
	if err != nil {
		return verb // bodies are plain data
	}
	sum := sha256.Sum256(append([]byte(verb+"\x00"), text...))
	return hex.EncodeToString(sum[:])
}

// commandID is the id of the ranks' control commands. The same key and request give the same one, also
// after this server was started again: the ranks then join or repeat. Without a key it is nobody else's.
func commandID(key, identity string) string {
	if key == "" {
		return "serve-" + rand.Text()
	}
	sum := sha256.Sum256([]byte(key + "\x00" + identity))
	return "serve-" + hex.EncodeToString(sum[:16])
}

// claim gives the request of a key. first says that it is the caller's to begin, and to settle.
func (k *keys) claim(key, identity string) (a *asked, first bool, wrong *refusal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a := k.byKey[key]; a != nil {
		if a.identity != identity {
			return nil, false, refuse(http.StatusUnprocessableEntity, codeKeyReused, "use a new key for a new request",
				"this Idempotency-Key was used for another request")
		}
		return a, false, nil
	}
	if k.byKey == nil {
		k.byKey = map[string]*asked{}
	}
	a = &asked{identity: identity, set: make(chan struct{})}
	k.byKey[key] = a
	k.order = append(k.order, key)
	k.forget()
	return a, true, nil
}

// settle says what came of a claimed request. One that was refused before any rank was asked is not
// remembered: the same may do better later.
func (k *keys) settle(key string, a *asked, w work, refused *refusal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a.work, a.refused = w, refused
	close(a.set)
	if refused != nil {
		k.drop(slices.Index(k.order, key))
	}
}

// forget drops the oldest that are over. Those under way are few, since runs are. The lock is held.
func (k *keys) forget() {
	for i := 0; len(k.order) > maxKeys && i < len(k.order); {
		if a := k.byKey[k.order[i]]; a.work != nil && over(a.work) {
			k.drop(i)
		} else {
			i++
		}
	}
}

// drop forgets the key at a place in the order. The lock is held.
func (k *keys) drop(i int) {
	delete(k.byKey, k.order[i])
	k.order = slices.Delete(k.order, i, i+1)
}
