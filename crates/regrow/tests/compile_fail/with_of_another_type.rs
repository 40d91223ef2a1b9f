use regrow::Pytree;

mod text {
    pub fn to_pytree(path: &std::path::PathBuf) -> String {
        path.display().to_string()
    }

    pub fn from_pytree(text: String) -> Result<String, String> {
        Ok(text)
    }
}

#[derive(Pytree)]
struct Model {
    #[pytree(with = "text")]
    source: std::path::PathBuf,
}

fn main() {}
