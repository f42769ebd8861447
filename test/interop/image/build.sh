#!/bin/bash
# Makes the guest of the interop tests: a Debian kernel and an initramfs that holds Linux
# siw in two builds, rdma_rxe and the usual RDMA programs. Everything comes from Debian.
#
# usage: build.sh DIR      writes DIR/kernel and DIR/initrd
#
# The two builds of siw:
#   siw         as its source stands: no CRC unless the peer asks, client/server model
#   siw-strict  demands the CRC and opens connections peer-to-peer
set -euo pipefail

dir=$(realpath -m "$1")
here=$(dirname "$(realpath "$0")")
work=$dir/work root=$dir/work/root
mkdir -p "$root"

[ "$(dpkg --print-architecture)" = amd64 ] || { echo "the guest is built from amd64 packages; this host is $(dpkg --print-architecture)" >&2; exit 1; }

export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
release=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-\([0-9].*\)/\1/p' | head -n 1)
version=${release%%-*}       # 6.1.0
source=linux-source-${version%.*}

programs="rping ucmatose rdma_client rdma_server udaddy rstream riostream ibv_devinfo ibv_rc_pingpong
	ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat qperf rdma ip"
apt-get -qq install -y --no-install-recommends \
	qemu-system-x86 busybox-static cpio gcc make xz-utils kmod iproute2 \
	rdma-core rdmacm-utils ibverbs-utils ibverbs-providers perftest qperf \
	"linux-headers-$release" "$source" >"$work/apt.log" 2>&1 || { cat "$work/apt.log" >&2; exit 1; }

echo "kernel $release"
(cd "$work" && apt-get -qq download "linux-image-$release" 2>>"$work/apt.log")
dpkg-deb -x "$work"/linux-image-*.deb "$work/kernel"
modules=$work/kernel/lib/modules/$release
depmod -b "$work/kernel" "$release"

# One build of siw. The further arguments are constants to set in siw_main.c.
siw() {
	local name=$1 src=$work/$1; shift
	mkdir -p "$src"
	tar -xJf "/usr/src/$source.tar.xz" -C "$src" --strip-components=5 "$source/drivers/infiniband/sw/siw"
	for constant; do
		sed -i "s/^\(const bool $constant\);/\1 = true;/" "$src/siw_main.c"
		grep -q "^const bool $constant = true;" "$src/siw_main.c"
	done
	make -C "/usr/src/linux-headers-$release" "M=$src" CONFIG_RDMA_SIW=m modules >"$src/build.log" 2>&1 ||
		{ tail -n 20 "$src/build.log" >&2; return 1; }
	mkdir -p "$root/modules"
	cp "$src/siw.ko" "$root/modules/$name.ko"
}
siw siw
siw siw-strict mpa_crc_required peer_to_peer

# Modules in the order in which they load; depmod knows what each one needs.
: >"$root/modules/order"
load() {
	local file
	modprobe -d "$work/kernel" -S "$release" --show-depends "$1" 2>/dev/null | awk '$1=="insmod"{print $2}' | while read -r file; do
		[ -e "$root/modules/$(basename "$file")" ] || { cp "$file" "$root/modules/"; basename "$file" >>"$root/modules/order"; }
	done
}
for m in virtio_pci virtio_net virtio_console libcrc32c crc32c_generic crc32c-intel crc32-pclmul ib_uverbs rdma_ucm iw_cm rdma_rxe; do load "$m"; done
test -s "$root/modules/order"

# Programs with the libraries they are linked to, in their usual places.
mkdir -p "$root"/{bin,dev,proc,sys,run,tmp,root,etc/libibverbs.d}
with_libraries() {
	cp -L --parents "$1" "$root"
	ldd "$1" | grep -o '/[^ ]*' | while read -r lib; do cp -Ln --parents "$lib" "$root"; done
}
cp "$(command -v busybox)" "$root/bin/busybox"
for p in $programs; do with_libraries "$(readlink -f "$(command -v "$p")")"; ln -sf "$(readlink -f "$(command -v "$p")")" "$root/bin/$p"; done
for driver in siw rxe; do
	with_libraries "$(echo /usr/lib/x86_64-linux-gnu/libibverbs/lib$driver-*.so)"
	cp "/etc/libibverbs.d/$driver.driver" "$root/etc/libibverbs.d/"
done
with_libraries /lib/x86_64-linux-gnu/libgcc_s.so.1 # opened by pthread_exit at run time

# What the guest consists of, for whoever reports on runs against it.
{
	echo "kernel $release $(dpkg-deb -f "$work"/linux-image-*.deb Version)"
	for p in "$source" rdma-core librdmacm1 ibverbs-providers rdmacm-utils perftest; do dpkg-query -W -f '${Package} ${Version}\n' "$p"; done
} >"$root/versions"

install -m 755 "$here/init" "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$dir/initrd"
cp "$work/kernel/boot/vmlinuz-$release" "$dir/kernel"
rm -rf "$work"
echo "ready"
