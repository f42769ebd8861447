package netstack
import ("testing";"github.com/softrdma/softrdma/pktio")
func BenchmarkZZ(b *testing.B) {
	for _, rec := range []Recovery{RecoveryRACK, RecoverySACK} {
	for _, buf := range []int{4<<20,16<<20} {
	for _, pipe := range []pktio.PipeConfig{pipe1500, pipeGSO} {
		n := "rack"; if rec == RecoverySACK { n = "sack" }
		if pipe.GSO { n += "/gso" } else { n += "/1500" }
		if buf == 4<<20 { n += "/4M" } else { n += "/16M" }
		b.Run(n, func(b *testing.B) { benchBulk(b, newUserPair(b, pipe, Config{Recovery: rec, SendBuffer: buf, RecvBuffer: buf})) })
	}}}
}
