// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// SpecFields are what a spec, what is stored of it and the info of its session have in common, in LangBot's words.
type SpecFields struct {
	HostPath         *string `json:"host_path"`
	HostPathMode     string  `json:"host_path_mode"`
	MountPath        string  `json:"mount_path"`
	Persistent       bool    `json:"persistent"`
	CPUs             float64 `json:"cpus"`
	MemoryMB         int64   `json:"memory_mb"`
	PidsLimit        int64   `json:"pids_limit"`
	ReadOnlyRootfs   bool    `json:"read_only_rootfs"`
	WorkspaceQuotaMB int64   `json:"workspace_quota_mb"`
}

// specSnapshot is what is stored of the spec of a session: its info repeats it, and later specs are compared with it.
type specSnapshot struct {
	Network string `json:"network"`
	Image   string `json:"image"`
	SpecFields
	Mounts string `json:"mounts,omitempty"` // digest of the writable extra mounts
}

// keep returns what is stored of a spec.
func (s *boxSpec) keep() *specSnapshot {
	k := &specSnapshot{Network: s.Network, Image: s.Image, SpecFields: s.SpecFields}
	if list := s.mounts(modeReadWrite); len(list) > 0 {
		text, _ := json.Marshal(list) // plain data: cannot fail
		sum := sha256.Sum256(text)
		k.Mounts = hex.EncodeToString(sum[:8])
	}
	return k
}

// conflict returns the first field in which a session differs from the requested one, and the session's value as Python prints it.
func (k *specSnapshot) conflict(requested *specSnapshot) (field, has string, differs bool) {
	path := func(p *string) string {
		if p == nil {
			return "None"
		}
		return *p
	}
	for _, f := range []struct{ name, has, requested string }{
		{"network", k.Network, requested.Network},
		{"image", k.Image, requested.Image},
		{"host_path", path(k.HostPath), path(requested.HostPath)},
		{"host_path_mode", k.HostPathMode, requested.HostPathMode},
		{"mount_path", k.MountPath, requested.MountPath},
		{"persistent", pyBool(k.Persistent), pyBool(requested.Persistent)},
		{"cpus", pyFloat(k.CPUs), pyFloat(requested.CPUs)},
		{"memory_mb", strconv.FormatInt(k.MemoryMB, 10), strconv.FormatInt(requested.MemoryMB, 10)},
		{"pids_limit", strconv.FormatInt(k.PidsLimit, 10), strconv.FormatInt(requested.PidsLimit, 10)},
		{"read_only_rootfs", pyBool(k.ReadOnlyRootfs), pyBool(requested.ReadOnlyRootfs)},
		{"workspace_quota_mb", strconv.FormatInt(k.WorkspaceQuotaMB, 10), strconv.FormatInt(requested.WorkspaceQuotaMB, 10)},
	} {
		if f.has != f.requested {
			return f.name, f.has, true
		}
	}
	return "", "", false
}

func pyBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// pyFloat formats a number as Python does.
func pyFloat(f float64) string {
	if math.Abs(f) >= 1e16 || f != 0 && math.Abs(f) < 1e-4 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// Session labels hold the snapshot in pieces, since the length of a label is limited.
const (
	labelName  = "langbot."
	labelPiece = 230
)

// labels returns the labels that hold the snapshot.
func (k *specSnapshot) labels() map[string]string {
	text, _ := json.Marshal(k) // plain data: cannot fail
	all := ascii(string(text))
	labels := map[string]string{}
	for i := 0; len(all) > 0; i++ {
		n := min(labelPiece, len(all))
		labels[fmt.Sprintf("%s%02d", labelName, i)], all = all[:n], all[n:]
	}
	return labels
}

// errNotOurs is the error for a session that another client made.
var errNotOurs = errors.New("the session was not made by LangBot")

// readLabels reads what Labels has written.
func readLabels(labels map[string]string) (*specSnapshot, error) {
	var text strings.Builder
	for i := 0; ; i++ {
		piece, ok := labels[fmt.Sprintf("%s%02d", labelName, i)]
		if !ok {
			break
		}
		text.WriteString(piece)
	}
	k := &specSnapshot{}
	if text.Len() == 0 || json.Unmarshal([]byte(text.String()), k) != nil {
		return nil, errNotOurs
	}
	return k, nil
}

// ascii escapes, in JSON, the characters that a label cannot have.
func ascii(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r < 0x7f {
			out.WriteRune(r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, u)
		}
	}
	return out.String()
}

// sessionInfo is LangBot's BoxSessionInfo.
type sessionInfo struct {
	SessionID        string `json:"session_id"`
	BackendName      string `json:"backend_name"`
	BackendSessionID string `json:"backend_session_id"`
	Image            string `json:"image"`
	Network          string `json:"network"`
	SpecFields
	CreatedAt  wireTime `json:"created_at"`
	LastUsedAt wireTime `json:"last_used_at"`

	Processes map[string]*processInfo `json:"managed_processes,omitempty"`
	Default   *processInfo            `json:"managed_process,omitempty"`
}

// Info returns the info of a session from its snapshot.
func (k *specSnapshot) Info(logical string) *sessionInfo {
	return &sessionInfo{SessionID: logical, Image: k.Image, Network: k.Network, SpecFields: k.SpecFields}
}

// processInfo is LangBot's BoxManagedProcessInfo.
type processInfo struct {
	SessionID     string    `json:"session_id"`
	ProcessID     string    `json:"process_id"`
	Status        string    `json:"status"`
	Command       string    `json:"command"`
	Args          []string  `json:"args"`
	Cwd           string    `json:"cwd"`
	EnvKeys       []string  `json:"env_keys"`
	Attached      bool      `json:"attached"`
	StartedAt     wireTime  `json:"started_at"`
	ExitedAt      *wireTime `json:"exited_at"`
	ExitCode      *int      `json:"exit_code"`
	StderrPreview string    `json:"stderr_preview"`
}

// Statuses of a process.
const (
	statusRunning = "running"
	statusExited  = "exited"
)

// executionResult is LangBot's BoxExecutionResult.
type executionResult struct {
	SessionID   string `json:"session_id"`
	BackendName string `json:"backend_name"`
	Status      string `json:"status"`
	ExitCode    *int   `json:"exit_code"`
	Stdout      string `json:"stdout"`
	Stderr      string `json:"stderr"`
	DurationMS  int64  `json:"duration_ms"`
}

// Statuses of an execution.
const (
	statusCompleted = "completed"
	statusTimedOut  = "timed_out"
)

// wireTime is a time in LangBot's format: UTC, to the microsecond.
type wireTime time.Time

// MarshalJSON formats it.
func (t wireTime) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(t).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}
