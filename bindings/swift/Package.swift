// swift-tools-version:5.5
import PackageDescription

let package = Package(
    name: "CEmberLM",
    products: [.library(name: "CEmberLM", targets: ["CEmberLM"])],
    targets: [.systemLibrary(name: "CEmberLM", pkgConfig: "emberlm")]
)
