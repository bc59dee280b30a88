// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/json"
	"strings"
	"time"
)

// Limits are the limits that LangBot sets.
type Limits struct {
	MaxSessions           int64 `json:"max_sessions"`
	MaxManagedProcesses   int64 `json:"max_managed_processes"`
	MaxCompletedProcesses int64 `json:"max_completed_processes"`
	MaxAdmissionRecords   int64 `json:"max_admission_records"`
	MaxRPCFileBytes       int64 `json:"max_rpc_file_bytes"`

	// Retention is how long a process that has ended stays known.
	Retention time.Duration `json:"-"`
}

// DefaultLimits returns the limits of a LangBot that sets none.
func DefaultLimits() Limits { return Limits{64, 64, 256, 100_000, 20 << 20, 5 * time.Minute} }

// ReadLimits reads the key limits of an INIT. given is false if it has none: then those before hold.
func ReadLimits(raw json.RawMessage) (limits Limits, given bool, err error) {
	limits = DefaultLimits()
	if IsNull(raw) {
		return limits, false, nil
	}
	fields, ok := ObjectOf(raw)
	if !ok {
		return limits, true, Refusef("ValueError", "box.limits must be an object")
	}
	retention := int64(limits.Retention / time.Second)
	for _, f := range []struct {
		name           string
		value          *int64
		minimum, limit int64
	}{
		{"max_sessions", &limits.MaxSessions, 0, 5000},
		{"max_managed_processes", &limits.MaxManagedProcesses, 0, 1024},
		{"max_completed_processes", &limits.MaxCompletedProcesses, 0, 10_000},
		{"max_admission_records", &limits.MaxAdmissionRecords, 1, 250_000},
		{"max_rpc_file_bytes", &limits.MaxRPCFileBytes, 1, 100 << 20},
		{"completed_process_retention_sec", &retention, 0, 86_400},
	} {
		raw, given := fields[f.name]
		if !given {
			continue
		}
		n, ok := CoerceInt(raw)
		if _, truth := map[string]bool{"true": true, "false": true}[strings.TrimSpace(string(raw))]; !ok || truth {
			return limits, true, Refusef("ValueError", "box.limits.%s must be an integer", f.name)
		}
		if n < f.minimum || n > f.limit {
			return limits, true, Refusef("ValueError", "box.limits.%s must be between %d and %d", f.name, f.minimum, f.limit)
		}
		*f.value = n
	}
	limits.Retention = time.Duration(retention) * time.Second
	return limits, true, nil
}
