// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"sync"
	"time"

	"github.com/boxd-dev/boxd/isolation"
)

// Sample is the usage of a session at one time. Each session has hundreds, so it is small: 88 bytes.
type Sample struct {
	At                                      int64         // Unix time in milliseconds
	CPU                                     time.Duration // since its box was started
	Memory, Swap                            uint64        // bytes
	Read, Written                           uint64        // bytes since its box was started
	Used, Files                             uint64        // of its workspace: bytes and number of files
	Pids                                    uint32
	CPUPercent                              float32 // of one CPU, since the previous sample or, for the first, since the session was created
	CPUPressure, MemoryPressure, IOPressure float32
	Counted                                 bool // there are cgroups; otherwise only Used and Files are known
	Quota                                   bool // the workspace has a quota; otherwise Used and Files are not known
}

// NewSample is the usage of a session now: of its cgroups and of its workspace, each nil if not known.
func (s *Session) NewSample(now time.Time, usage *CgroupUsage, workspace *isolation.Disk) Sample {
	m := Sample{At: now.UnixMilli()}
	if workspace != nil {
		m.Quota, m.Used, m.Files = true, workspace.Used, workspace.Files
	}
	if usage == nil {
		return m
	}
	m.Counted, m.CPU, m.Memory, m.Swap, m.Pids, m.Read, m.Written = true, usage.CPU, usage.Memory, usage.Swap, uint32(usage.Pids), usage.Read, usage.Written
	m.CPUPressure, m.MemoryPressure, m.IOPressure = float32(usage.CPUPressure), float32(usage.MemoryPressure), float32(usage.IOPressure)
	prev := Sample{At: s.Created.UnixMilli()}
	if last, ok := s.history.last(); ok {
		prev = last
	}
	if prev.CPU > m.CPU { // the session was stopped in between: this is another box
		prev.CPU = 0
	}
	if elapsed := time.Duration(m.At-prev.At) * time.Millisecond; elapsed > 0 {
		m.CPUPercent = float32(100 * float64(m.CPU-prev.CPU) / float64(elapsed))
	}
	return m
}

// history is the recent usage of a session.
type history struct {
	mu   sync.Mutex
	list []Sample // oldest first
}

func (h *history) last() (Sample, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == 0 {
		return Sample{}, false
	}
	return h.list[len(h.list)-1], true
}

// Remember adds a sample to the history of a session.
func (s *Session) Remember(m Sample) {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	s.history.list = append(s.history.list, m)
}

// ForgetBefore drops the older samples of a session, and all but the last limit of the others, so that setting the clock back
// does not make them accumulate.
func (s *Session) ForgetBefore(at time.Time, limit int) {
	h := s.history
	h.mu.Lock()
	defer h.mu.Unlock()
	old := 0
	for old < len(h.list) && h.list[old].At < at.UnixMilli() {
		old++
	}
	if old = max(old, len(h.list)-limit); old == len(h.list) {
		h.list = nil // frees its capacity too
		return
	}
	h.list = slices.Delete(h.list, 0, old)
}

// History returns the samples of a session that were taken after a time, oldest first.
func (s *Session) History(after time.Time) []Sample {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	start := 0
	for start < len(s.history.list) && s.history.list[start].At <= after.UnixMilli() {
		start++
	}
	return slices.Clone(s.history.list[start:])
}

// TakeHistory gives a session that no caller knows yet the history of the one it replaces.
func (s *Session) TakeHistory(from *Session) { s.history = from.history }
