package pipeline

// ContextReset says that the device's primary context was reset: the workers' streams on it are gone. No
// operation runs.
func (p *Pool) ContextReset(dev int) {
	for _, w := range p.workers {
		delete(w.streams, dev)
	}
}
