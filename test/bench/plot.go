package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// A plot, in SVG's units.
const (
	plotWidth, plotHeight = 760, 470
	plotLeft, plotRight   = 70, 20
	plotTop, plotBottom   = 50, 75
)

// styles of curves: each has a colour, a dash pattern and a mark of its own, so that they
// can be told apart in grey, too.
var styles = []struct{ colour, dash, mark string }{
	{"#0b5fa5", "", "circle"}, {"#c2410c", "7 4", "square"}, {"#4d7c0f", "2 3", "triangle"}, {"#6b21a8", "9 3 2 3", "circle"},
}

// axes map values to places.
type axes struct {
	minX, maxX float64 // log2 of sizes
	minY, maxY float64 // of values, or their log10
	logY       bool
}

func axesOf(curves []curve, logY bool) (a axes) {
	a = axes{minX: math.Inf(1), maxX: math.Inf(-1), minY: math.Inf(1), maxY: math.Inf(-1), logY: logY}
	for _, c := range curves {
		for _, p := range c.Points {
			x := math.Log2(float64(p.Size))
			a.minX, a.maxX = min(a.minX, x), max(a.maxX, x)
			a.minY, a.maxY = min(a.minY, p.Value), max(a.maxY, p.Value)
		}
	}
	if a.maxX <= a.minX {
		a.maxX = a.minX + 1
	}
	if logY {
		a.minY, a.maxY = math.Floor(math.Log10(a.minY)), math.Ceil(math.Log10(a.maxY))
		if a.maxY <= a.minY {
			a.maxY = a.minY + 1
		}
		return a
	}
	step := niceStep(a.maxY / 6)
	a.minY, a.maxY = 0, step*math.Ceil(a.maxY/step)
	return a
}

// niceStep is 1, 2 or 5 times a power of ten, not less than v.
func niceStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*p*(1+1e-9) {
			return m * p
		}
	}
	return 10 * p
}

func (a axes) x(size float64) float64 {
	return plotLeft + (math.Log2(size)-a.minX)/(a.maxX-a.minX)*(plotWidth-plotLeft-plotRight)
}

func (a axes) y(v float64) float64 {
	if a.logY {
		v = math.Log10(v)
	}
	return plotHeight - plotBottom - (v-a.minY)/(a.maxY-a.minY)*(plotHeight-plotTop-plotBottom)
}

// ticksY are the values with a line across and a number.
func (a axes) ticksY() (values []float64) {
	if !a.logY {
		step := niceStep(a.maxY / 6)
		for i := 0; float64(i)*step <= a.maxY*(1+1e-9); i++ {
			values = append(values, float64(i)*step)
		}
		return values
	}
	for e := a.minY; e <= a.maxY; e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); math.Log10(v) <= a.maxY+1e-9 {
				values = append(values, v)
			}
		}
	}
	return values
}

// sizeWord prints a power of two as people say it.
func sizeWord(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// drawing collects elements.
type drawing struct{ strings.Builder }

func (d *drawing) put(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

func (d *drawing) text(x, y float64, anchor, more, s string) {
	d.put(`<text x="%.1f" y="%.1f" text-anchor="%s"%s>%s</text>`, x, y, anchor, more, html.EscapeString(s))
}

// plot draws curves over message size.
func plot(title, yLabel, caption string, curves []curve, logY bool) string {
	a := axesOf(curves, logY)
	d := &drawing{}
	d.put(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`, plotWidth, plotHeight)
	d.put(`<rect width="100%%" height="100%%" fill="white"/>`)
	d.text(plotLeft, 22, "start", ` font-size="16" font-weight="bold"`, title)
	d.frame(a, yLabel)
	for i, c := range curves {
		d.curve(a, c, i)
	}
	for i, c := range curves {
		d.legend(plotLeft+14, plotTop+18+float64(i)*18, i, c.Name)
	}
	d.text(plotLeft, plotHeight-10, "start", ` font-size="10" fill="#555"`, caption)
	d.put(`</svg>`)
	return d.String()
}

// frame draws the axes, their lines and labels.
func (d *drawing) frame(a axes, yLabel string) {
	const bottom = plotHeight - plotBottom
	for e := int(math.Ceil(a.minX)); e <= int(a.maxX); e++ {
		x := a.x(float64(int(1) << e))
		d.put(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e5e5e5"/>`, x, plotTop, x, bottom)
		if (e-1)%2 == 0 { // 2, 8, 32 and so on: all of them have no room
			d.text(x, bottom+18, "middle", ` font-size="10"`, sizeWord(1<<e))
		}
	}
	for _, v := range a.ticksY() {
		y := a.y(v)
		d.put(`<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e5e5e5"/>`, plotLeft, y, plotWidth-plotRight, y)
		d.text(plotLeft-8, y+4, "end", "", fmt.Sprintf("%g", math.Round(v*1e6)/1e6))
	}
	d.put(`<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#333"/>`, plotLeft, plotTop, plotWidth-plotLeft-plotRight, bottom-plotTop)
	d.text((plotLeft+plotWidth-plotRight)/2, bottom+40, "middle", "", "message size")
	middle := float64(plotTop+bottom) / 2
	d.text(20, middle, "middle", fmt.Sprintf(` transform="rotate(-90 20 %.1f)"`, middle), yLabel)
}

func (d *drawing) curve(a axes, c curve, i int) {
	s := styles[i%len(styles)]
	var path []string
	for _, p := range c.Points {
		path = append(path, fmt.Sprintf("%.1f,%.1f", a.x(float64(p.Size)), a.y(p.Value)))
	}
	d.put(`<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`, strings.Join(path, " "), s.colour, s.dash)
	for _, p := range c.Points {
		d.mark(a.x(float64(p.Size)), a.y(p.Value), i)
	}
}

func (d *drawing) mark(x, y float64, i int) {
	s := styles[i%len(styles)]
	switch s.mark {
	case "square":
		d.put(`<rect x="%.1f" y="%.1f" width="6" height="6" fill="%s"/>`, x-3, y-3, s.colour)
	case "triangle":
		d.put(`<path d="M%.1f %.1fl4 7h-8z" fill="%s"/>`, x, y-4, s.colour)
	default:
		d.put(`<circle cx="%.1f" cy="%.1f" r="3.2" fill="%s"/>`, x, y, s.colour)
	}
}

func (d *drawing) legend(x, y float64, i int, name string) {
	s := styles[i%len(styles)]
	d.put(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>`, x, y-4, x+34, y-4, s.colour, s.dash)
	d.mark(x+17, y-4, i)
	d.text(x+42, y, "start", "", name)
}

// writePlots writes latency.svg and throughput.svg of the carriers, and the same of the
// threading models, where they were measured; nothing without a directory.
func writePlots(dir string, curves, models []curve, f facts, quiet bool) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	caption := fmt.Sprintf("%s, %d processors, Linux %s, %s; one veth pair, MTU 1500, %s", f.CPU, f.CPUs, f.Kernel, f.Go, f.Time.Format("2006-01-02"))
	if !quiet {
		caption += "; the host was NOT QUIET"
	}
	for _, p := range []struct {
		of                   []curve
		kind, file, title, y string
		logY                 bool
	}{
		{curves, "lat", "latency.svg", "Round trip, median, one message each way", "microseconds", true},
		{curves, "bw", "throughput.svg", "Throughput of one connection, short messages in batches of up to 32", "GB/s", false},
		{models, "lat", "models-latency.svg", "Threading models: round trip of WRITE, median", "microseconds", true},
		{models, "bw", "models-throughput.svg", "Threading models: WRITEs of one connection, up to 128 at once", "GB/s", false},
	} {
		var some []curve
		for _, c := range p.of {
			if c.Kind == p.kind && len(c.Points) > 0 {
				some = append(some, c)
			}
		}
		if len(some) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, p.file), []byte(plot(p.title, p.y, caption, some, p.logY)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
