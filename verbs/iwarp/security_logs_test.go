package iwarp

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/softrdma/softrdma/internal/wiretest"
	"github.com/softrdma/softrdma/netstack"
	"github.com/softrdma/softrdma/verbs"
	"github.com/softrdma/softrdma/verbs/rdmacm"
)

// evilData is what peers would like to see in our log: a false line, and a terminal
// that turns red.
const evilData = "EVIL\x1b[31m\nlevel=ERROR msg=forged"

// floodPatience is how long a flood goes on where a host is too slow for it to pass the limit.
const floodPatience = 20 * time.Second

// floodLog keeps what a device logs, of every level, and when it began.
type floodLog struct {
	mu    sync.Mutex
	text  bytes.Buffer // guarded by mu
	begin time.Time
}

func (l *floodLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *floodLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// flooded opens a device on the host's TCP sockets that logs into a floodLog.
func flooded(t *testing.T) (*device, *verbs.Device, *floodLog) {
	t.Helper()
	l := &floodLog{begin: time.Now()}
	proto, err := Protocol{}.withDefaults()
	require.NoError(t, err)
	c := Config{Backend: Kernel, Protocol: proto, SpinFor: DefaultSpin,
		Logger: slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug - 100}))}
	d, err := c.open()
	require.NoError(t, err)
	dev := verbs.NewDevice(d.provider())
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return d, dev, l
}

// bounded checks a log of events that peers caused: no more lines a second than are
// allowed, each of a bounded length, and what was left out counted.
func (l *floodLog) bounded(t *testing.T, d *device) {
	t.Helper()
	text := l.String()
	seconds := int(time.Since(l.begin)/time.Second) + 2 // the first and the last are not whole
	lines := strings.Count(text, "\n")
	t.Logf("%d lines in %d s, %d left out", lines, seconds-1, d.log.total.Load())
	require.Positive(t, lines)
	require.LessOrEqual(t, lines, logsPerSecond*seconds)
	require.Less(t, len(text), 500*lines, "each of bounded length")
	require.Positive(t, d.log.total.Load(), "what was left out is counted")
}

// clean checks that the peers' data is not in the log, in no form that a formatter
// gives it.
func (l *floodLog) clean(t *testing.T) {
	t.Helper()
	text := l.String()
	evil := []byte("EVIL")
	for _, form := range []string{
		"EVIL", "forged", "\x1b",
		fmt.Sprintf("%x", evil), fmt.Sprintf("%X", evil), fmt.Sprintf("% x", evil),
		strings.Trim(fmt.Sprint(evil), "[]"), strings.TrimSuffix(fmt.Sprintf("%#v", evil)[len("[]byte{"):], "}"),
		base64.StdEncoding.EncodeToString([]byte(evilData))[:4],
	} {
		require.NotContains(t, text, form)
	}
}

// count returns how many lines have that message.
func (l *floodLog) count(msg string) int { return strings.Count(l.String(), "msg="+msg) }

// responder is a scripted server that a device dials again and again.
type responder struct {
	dialer rdmacm.Dialer
	lis    *net.TCPListener
}

func newResponder(t *testing.T, dev *verbs.Device) *responder {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { lis.Close() })
	return &responder{rdmacm.Dialer{Device: dev, Easy: rdmacm.Easy{Messages: 1, Size: 64}}, lis.(*net.TCPListener)}
}

// answer has the device dial once and plays the other side.
func (r *responder) answer(t *testing.T, play func(p *wiretest.Peer)) (*rdmacm.Conn, error) {
	t.Helper()
	var conn *rdmacm.Conn
	dialed := make(chan error, 1)
	go func() {
		var err error
		conn, err = r.dialer.Dial(t.Context(), r.lis.Addr().String())
		dialed <- err
	}()
	require.NoError(t, r.lis.SetDeadline(time.Now().Add(10*time.Second)))
	tcp, err := r.lis.Accept()
	require.NoError(t, err)
	defer tcp.Close()
	play(wiretest.NewPeer(t, tcp))
	err = <-dialed
	return conn, err
}

// evilAnswer takes the Request and makes the Reply of the kernel's driver, with evil private data.
func evilAnswer(t *testing.T, p *wiretest.Peer) wiretest.Startup {
	t.Helper()
	return wiretest.Knowns()[0].Answer(t, p.Startup(), 1, 1, []byte(evilData)...)
}

// TestDialLogFlood dials peers that mean the log: those that reject us, talk nonsense,
// or accept us and reset the connection.
func TestDialLogFlood(t *testing.T) {
	t.Run("SEC-34 failed dials are logged within the limit, without what the peer said", func(t *testing.T) {
		d, dev, log := flooded(t)
		r := newResponder(t, dev)
		dials := 0
		for dials < 400 || d.log.total.Load() == 0 && time.Since(log.begin) < floodPatience {
			_, err := r.answer(t, func(p *wiretest.Peer) {
				if dials%2 == 0 {
					rep := evilAnswer(t, p)
					rep.Flags |= wiretest.FlagR
					p.Write(rep.Octets())
				} else {
					p.Startup()
					p.Write([]byte(strings.Repeat(evilData, 4)))
				}
			})
			var rejected *verbs.RejectError
			if dials%2 == 0 {
				require.ErrorAs(t, err, &rejected)
				require.Equal(t, evilData, string(rejected.PrivateData), "the application gets it")
			}
			require.Error(t, err)
			require.NotContains(t, err.Error(), "EVIL", "whoever prints the error prints nothing of it")
			dials++
		}
		log.bounded(t, d)
		log.clean(t)
		require.Contains(t, log.String(), "rejected by the peer")
		require.Equal(t, uint64(dials), uint64(log.count(`"connect failed"`))+d.log.total.Load(), "each is logged or counted")
	})
	t.Run("SEC-34 connections are logged within the limit, without the private data of the Reply", func(t *testing.T) {
		d, dev, log := flooded(t)
		r := newResponder(t, dev)
		dials := 0
		for dials < 300 || d.log.total.Load() == 0 && time.Since(log.begin) < floodPatience {
			conn, err := r.answer(t, func(p *wiretest.Peer) {
				p.Write(evilAnswer(t, p).Octets())
				require.Equal(t, wiretest.ReadRequest(1, 1, 0, 0, 1, 0), firstMeant(p), "the ready-to-receive message")
				p.Send(wiretest.Tagged(2, true, 1, 0, nil), wiretest.Untagged(3, true, 0, 9, 1, 0, []byte(evilData)))
			})
			require.NoError(t, err)
			require.Equal(t, evilData, string(conn.PrivateData()))
			<-conn.Done()
			require.NoError(t, conn.Close())
			dials++
		}
		log.bounded(t, d)
		log.clean(t)
		require.Positive(t, log.count("connected"))
		require.Positive(t, log.count(`"connection ended"`))
	})
}

// firstMeant skips the empty Writes that wake a slow responder.
func firstMeant(p *wiretest.Peer) []byte {
	for {
		if u := p.Next(); !bytes.Equal(u, wiretest.Tagged(0, true, 1, 0, nil)) {
			return u
		}
	}
}

// TestConflictLogFlood tells a device of address conflicts faster than its stack does,
// which makes one of many: the log has a bound of its own.
func TestConflictLogFlood(t *testing.T) {
	t.Run("SEC-34 address conflicts are logged within the limit", func(t *testing.T) {
		d, _, log := flooded(t)
		const n = 400
		require.True(t, d.doWait(func() {
			for i := range n {
				d.conflict(&netstack.Conflict{Addr: netip.MustParseAddr("192.0.2.1"), MAC: [6]byte{2, 0, 0, 0, byte(i >> 8), byte(i)}, Link: "eth0", Count: uint64(i)})
			}
		}))
		log.bounded(t, d)
		require.Equal(t, n, strings.Count(log.String(), "is also used by")+int(d.log.total.Load()), "each is logged or counted")
	})
}
