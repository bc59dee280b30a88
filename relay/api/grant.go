// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/boxd-dev/boxd/quantity"
)

// Grant is a role that a principal has for a time.
type Grant struct {
	Principal string    `json:"principal"`
	Role      string    `json:"role"` // "viewer", "user", "operator" or "admin"
	By        string    `json:"by"`   // who has given it
	CreatedAt time.Time `json:"created_at"`
	Until     time.Time `json:"until"`
}

// GrantList lists those whose time is not over.
type GrantList struct {
	Grants []Grant `json:"grants"`
}

// GrantRequest asks for a grant. It takes the place of one that the principal has.
type GrantRequest struct {
	Principal string            `json:"principal"` // a table [principals.NAME] of box.toml, or "uid:1000"
	Role      string            `json:"role"`
	For       quantity.Duration `json:"for"` // 1s to 168h
}
