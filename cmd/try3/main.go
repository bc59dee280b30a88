package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"bufio"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

type tgt struct { name string; fd int; c *client.Client; h, nf, ex, life []float64 }

func main() {
	ctx := context.Background()
	buf := make([]byte, 65536)
	var ts []*tgt
	for _, dir := range os.Args[2:] {
		cfg := dir + "/t.toml"
		sock := dir + "/sock"
		os.WriteFile(cfg, []byte(fmt.Sprintf("[daemon]\nsocket=%q\nstate_dir=%q\nsocket_group=\"root\"\n[limits]\nbest_effort=[\"memory\",\"cpu\",\"pids\"]\n", sock, dir+"/state")), 0644)
		cmd := exec.Command(dir+"/boxd", "-config", cfg)
		if err := cmd.Start(); err != nil { panic(err) }
		defer func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() }()
		c := client.New(sock)
		for c.Ready(ctx) != nil { time.Sleep(10 * time.Millisecond) }
		if _, _, err := c.Create(ctx, &api.SessionRequest{ID: "t3"}); err != nil { panic(err) }
		fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: sock}); err != nil { panic(err) }
		ts = append(ts, &tgt{name: dir, fd: fd, c: c})
	}
	rt := func(fd int, m, path, body string) string {
		req := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", m, path, len(body), body)
		unix.Write(fd, []byte(req))
		n := 0
		for {
			k, err := unix.Read(fd, buf[n:])
			if err != nil || k == 0 { panic(string(buf[:n])) }
			n += k
			if i := strings.Index(string(buf[:n]), "\r\n\r\n"); i > 0 {
				j := strings.Index(string(buf[:n]), "Content-Length: ")
				if j < 0 { return "" }
				e := strings.Index(string(buf[j:n]), "\r")
				l, _ := strconv.Atoi(string(buf[j+16:j+e]))
				if n >= i+4+l { return string(buf[i+4:n]) }
			}
		}
	}
	hc := exec.Command("/tmp/p/c/floor1", "/usr/bin/true")
	hin, _ := hc.StdinPipe(); hout, _ := hc.StdoutPipe(); hc.Start(); rd := bufio.NewReader(hout)
	m := func(s []float64) string { sort.Float64s(s); return fmt.Sprintf("%.0f/%.0f", s[0], s[len(s)/2]) }
	d := func(t time.Time) float64 { return float64(time.Since(t).Nanoseconds()) / 1e3 }
	zz := func() { time.Sleep(1500 * time.Microsecond) }
	var fl []float64
	rounds, _ := strconv.Atoi(os.Args[1])
	for range rounds {
		hin.Write([]byte("\n")); l, _ := rd.ReadString('\n'); v, _ := strconv.ParseFloat(strings.Fields(l)[0], 64); fl = append(fl, v/1e3); zz()
		for _, g := range ts {
			t := time.Now(); rt(g.fd, "GET", "/healthz", ""); g.h = append(g.h, d(t)); zz()
			t = time.Now(); rt(g.fd, "POST", "/v1/sessions/t3/exec", `{"argv":["/nonex"]}`); g.nf = append(g.nf, d(t)); zz()
			t = time.Now(); rt(g.fd, "POST", "/v1/sessions/t3/exec", `{"argv":["/bin/true"]}`); g.ex = append(g.ex, d(t)); zz()
			t = time.Now(); rt(g.fd, "POST", "/v1/exec", `{"session":{},"exec":{"argv":["/bin/true"]}}`); g.life = append(g.life, d(t)); zz()
		}
	}
	fmt.Println("floor", m(fl))
	F := fl[len(fl)/2]
	for _, g := range ts {
		fmt.Printf("%-12s health %s nonex %s exec %s (%.2f) oneshot %s (%.2f)\n", g.name, m(g.h), m(g.nf), m(g.ex), g.ex[len(g.ex)/2]/F, m(g.life), g.life[len(g.life)/2]/F)
		g.c.Delete(ctx, "t3")
	}
}
