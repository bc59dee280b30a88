package e2b

import (
	"log/slog"
	"net/http"

	"github.com/boxd-dev/boxd/supervisor"
)

type Contexts struct{}

func newContexts(*supervisor.Supervisor, *slog.Logger) *Contexts { return &Contexts{} }

func (c *Contexts) serve(w http.ResponseWriter, r *http.Request, sb *sandbox) {}
