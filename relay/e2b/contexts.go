// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"log/slog"
	"net/http"

	"github.com/boxd-dev/boxd/supervisor"
)

// Contexts are the code contexts of all sandboxes.
type Contexts struct{}

func newContexts(*supervisor.Supervisor, *slog.Logger) *Contexts { return &Contexts{} }

// serve answers what is for code.
func (c *Contexts) serve(w http.ResponseWriter, r *http.Request, _ *sandbox) { http.NotFound(w, r) }
