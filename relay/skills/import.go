// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	base "path"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/access"
	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation/files"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/download"
	"github.com/boxd-dev/boxd/relay/route"
	does "github.com/boxd-dev/boxd/supervisor/files"
	store "github.com/boxd-dev/boxd/supervisor/skills"
	"github.com/boxd-dev/boxd/supervisor/skills/address"
)

// patience is how long a caller may take for a piece of an archive.
const patience = time.Minute

// sent reads the body of a request as it comes.
type sent struct{ c *route.Call }

func (s sent) Read(p []byte) (int, error) {
	_ = http.NewResponseController(s.c.W).SetReadDeadline(time.Now().Add(patience)) // every connection of ours has deadlines
	return s.c.R.Body.Read(p)
}

// staged brings in the archive of a request and does something with it.
func staged(c *route.Call, do func(st *store.Stage, who string, choice *store.Choice) (any, error)) (any, error) {
	who, err := c.Owner()
	if err != nil {
		return nil, err
	}
	query := c.R.URL.Query()
	choice := &store.Choice{Subdir: query.Get("subdir"), Digest: query.Get("digest")}
	if text := query.Get("select"); text != "" {
		choice.Paths = strings.Split(text, ",")
	}
	if choice.Replace, err = flag(query, "replace"); err != nil {
		return nil, err
	}
	st, err := c.Skills.Stage(c.Context())
	if err != nil {
		return nil, err
	}
	defer st.Close()
	if err := fill(c, who, st, choice); err != nil {
		return nil, err
	}
	return do(st, who.Name, choice)
}

// fill takes the archive from where the request says.
func fill(c *route.Call, who access.Principal, st *store.Stage, choice *store.Choice) error {
	query := c.R.URL.Query()
	from, session := query.Get("url"), query.Get("session")
	switch {
	case from != "" && session != "":
		return fault.Field("session", session, "left out, as url is given")
	case session != "":
		return fillFromSession(c, who, st, choice, session, query.Get("path"))
	case query.Has("path"):
		return fault.Field("path", query.Get("path"), "left out: it is of a session")
	case from == "":
		return st.Fill(sent{c}, "")
	}
	hosts, err := c.Skills.Hosts()
	if err != nil {
		return err
	}
	a, err := address.Find(hosts, from)
	if err != nil {
		return err
	}
	choice.Origin, choice.AnyTop = from, a.Repository
	choice.Subdir = cmp.Or(choice.Subdir, a.Below)
	below := ""
	if a.Repository {
		below = strings.Trim(choice.Subdir, "/")
	}
	return download.Fetch(c.Context(), hosts, a, func(r io.Reader) error { return st.Fill(r, below) })
}

// fillFromSession has a directory of a session packed inside its box.
func fillFromSession(c *route.Call, who access.Principal, st *store.Stage, choice *store.Choice, id, path string) error {
	if path == "" {
		return fault.Field("path", fault.Word("missing"), "a directory of the session")
	}
	s, err := c.Sup.Session(who, id)
	if err != nil {
		return err
	}
	choice.Origin, choice.Dir = "session "+id+", "+path, base.Base(path)
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		_, err := does.Pack(ctx, s, &files.Pack{Path: []byte(path)}, w)
		w.CloseWithError(err)
		packed <- err
	}()
	err = st.Fill(r, "")
	r.CloseWithError(errUnread)
	cancel() // whoever still packs is done
	if failed := <-packed; failed != nil && !errors.Is(failed, errUnread) && !errors.Is(failed, context.Canceled) {
		return failed
	}
	return err
}

var errUnread = errors.New("nobody reads it any more")

// Preview tells what could be installed, and what is wrong with it.
func Preview(c *route.Call) (any, error) {
	return staged(c, func(st *store.Stage, _ string, choice *store.Choice) (any, error) {
		found, err := st.Candidates(choice)
		if err != nil {
			return nil, err
		}
		out := api.SkillCandidates{Candidates: []api.SkillCandidate{}}
		for _, x := range found {
			a := api.SkillCandidate{Path: cmp.Or(x.Path, "."), Skill: api.SkillDraft{
				Name: x.Skill.Name, Description: x.Skill.Description, Instructions: x.Skill.Instructions, Digest: x.Skill.Digest,
				Bytes: x.Skill.Bytes, Entries: x.Skill.Entries, Advice: x.Skill.Advice,
			}}
			for _, p := range x.Problems {
				a.Problems = append(a.Problems, api.SkillProblem{Key: p.Key, Text: p.Text})
			}
			out.Candidates = append(out.Candidates, a)
		}
		return out, nil
	})
}

// Install makes skills of what is chosen: all of it or nothing.
func Install(c *route.Call) (any, error) {
	return staged(c, func(st *store.Stage, who string, choice *store.Choice) (any, error) {
		made, err := st.Install(who, choice)
		if err != nil {
			return nil, err
		}
		list := api.SkillList{Skills: []api.Skill{}}
		for _, k := range made {
			k.Instructions = ""
			list.Skills = append(list.Skills, skill(&k))
		}
		return list, nil
	})
}

func flag(query url.Values, name string) (bool, error) {
	switch value := query.Get(name); {
	case !query.Has(name) || value == "false":
		return false, nil
	case value == "true":
		return true, nil
	default:
		return false, fault.Field(name, value, "true, false")
	}
}
