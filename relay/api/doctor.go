// SPDX-License-Identifier: Apache-2.0

package api

// Doctor is the answer of GET /v1/doctor. OK is false if a check failed.
type Doctor struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// Check is one line of an examination; Level is "ok", "warn" or "fail".
type Check struct {
	Name   string `json:"name"`
	Level  string `json:"level"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// Health is the answer of GET /healthz and GET /readyz.
type Health struct {
	Status string `json:"status"` // "ok"
}
