// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// Event is one thing that has happened: the data of an event of GET /v1/events. What does not apply is left out.
type Event struct {
	// ID is the place after the event: a reader goes on there with Last-Event-ID, or ?after=.
	ID        string    `json:"id"`
	Time      time.Time `json:"time"`
	Type      string    `json:"type"`
	Session   string    `json:"session,omitempty"`
	Owner     string    `json:"owner,omitempty"`     // of the session
	Principal string    `json:"principal,omitempty"` // who asked
	Process   string    `json:"process,omitempty"`
	Exec      string    `json:"exec,omitempty"`
	Profile   string    `json:"profile,omitempty"`
	Reason    string    `json:"reason,omitempty"` // in one word
	Detail    string    `json:"detail,omitempty"` // for a person
	TookMS    float64   `json:"took_ms,omitempty"`
	Request   string    `json:"request,omitempty"` // its X-Request-Id
	Parent    string    `json:"traceparent,omitempty"`
	// Gap is there in an event of the type "gap" alone.
	Gap *Gap `json:"gap,omitempty"`
}

// EventGap is the type of an event that says that others are missing from here.
const EventGap = "gap"

// Gap says why events are missing.
type Gap struct {
	// Restarted says that boxd was started anew since the reader's place: what came between is not known.
	Restarted bool `json:"restarted,omitempty"`
	// Missed is how many events, of all principals, are no longer kept that came after the reader's place.
	Missed uint64 `json:"missed,omitempty"`
}

// RecentError is one of the last errors. One without a principal was boxd's own.
type RecentError struct {
	Time      time.Time `json:"time"`
	Principal string    `json:"principal,omitempty"`
	Route     string    `json:"route,omitempty"`
	Session   string    `json:"session,omitempty"`
	Status    int       `json:"status,omitempty"` // of the answer
	Kind      string    `json:"kind"`             // the end of the problem's type; "warn" or "error" of boxd's own
	Detail    string    `json:"detail"`
	Request   string    `json:"request,omitempty"`
	Parent    string    `json:"traceparent,omitempty"`
}

// ErrorList is the answer of GET /v1/errors, the oldest first.
type ErrorList struct {
	Errors []RecentError `json:"errors"`
}

// AuditRecord is a record of the audit log. What does not apply is left out.
type AuditRecord struct {
	Seq       uint64     `json:"seq"`
	Kind      string     `json:"kind"` // call, running, started, repaired, dropped, lost
	Time      time.Time  `json:"time"`
	Request   string     `json:"request,omitempty"`
	Parent    string     `json:"traceparent,omitempty"`
	Principal string     `json:"principal,omitempty"`
	UID       *uint32    `json:"uid,omitempty"`
	PID       int        `json:"pid,omitempty"`
	Via       string     `json:"via,omitempty"` // "socket", "tcp", or "token:" and its name
	Route     string     `json:"route,omitempty"`
	Session   string     `json:"session,omitempty"`
	Owner     string     `json:"owner,omitempty"` // of the session, where that is somebody else
	Process   string     `json:"process,omitempty"`
	What      *AuditWhat `json:"what,omitempty"`
	Status    int        `json:"status,omitempty"`
	Outcome   string     `json:"outcome,omitempty"` // done, failed, cut_off where the caller has not waited for all of the answer, or the status of what was run
	Error     string     `json:"error,omitempty"`   // the end of the problem's type
	Detail    string     `json:"detail,omitempty"`
	TookMS    float64    `json:"took_ms,omitempty"`
}

// AuditWhat is what a call has asked for. Of the environment there are names alone.
type AuditWhat struct {
	Argv    []string `json:"argv,omitempty"`
	SHA256  string   `json:"argv_sha256,omitempty"` // of the arguments, each with a zero byte behind it
	Argc    int      `json:"argc,omitempty"`
	Env     []string `json:"env,omitempty"`
	Mounts  []string `json:"mounts,omitempty"`
	Profile string   `json:"profile,omitempty"`
	Changes []string `json:"changes,omitempty"` // names of other fields that were given
}

// AuditList is the answer of GET /v1/audit, the oldest first. Head is the place of the last record of the log,
// whether it is here or not: NUMBER:HASH, to be noted elsewhere.
type AuditList struct {
	Records []AuditRecord `json:"records"`
	Head    string        `json:"head"`
	Cut     bool          `json:"cut,omitempty"` // there are less than asked for: more would be 16 MiB
}
